"""Rules for named scopes reach the functions and modules that open them.

A pattern that matches no scope is an error at the end of the call.
"""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import pytest
from unamp_jax import scope_rules

import unamp

KEY = jax.random.key(0)
X = jnp.linspace(-1, 1, 8).reshape(2, 4)
W = jnp.linspace(-1, 1, 16).reshape(4, 4)
BF16, F32 = "bfloat16", "float32"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    enter = vars(scope_rules._scope_class())["__enter__"]
    yield
    assert scope_rules._KEY._obj.get_global() is None
    assert vars(scope_rules._scope_class())["__enter__"] is enter


def _make() -> Any:
    def network(x: Any, w: Any = W) -> Any:
        with jax.named_scope("first"):
            a = x @ w
        with jax.named_scope("second"):
            return a, x @ w

    return network


def _dtypes(run: Any, *args: Any) -> list[str]:
    with unamp.autocast(dtype=BF16):
        return [str(result.dtype) for result in run(*(args or (X,)))]


def test_layers_are_those_that_were_met() -> None:
    network = _make()
    code = network.__code__
    with unamp.layer_policies(network, {"second": F32}) as rules:
        assert dict(rules.layers) == {}
        assert _dtypes(network) == [BF16, F32]
        assert dict(rules.layers) == {"second": F32}
        assert repr(rules) == "<rules for 1 layers of network>"
    assert network.__code__ is code
    assert _dtypes(network) == [BF16, BF16]


@pytest.mark.parametrize(
    "way", [lambda run: run, jax.jit, jax.checkpoint, lambda run: jax.jit(jax.vmap(run))]
)
def test_a_pattern_that_matches_no_scope_raises_at_the_end_of_a_call(way: Any) -> None:
    network = _make()
    run = way(network)
    x = X[None]
    with unamp.layer_policies(network, {"first": F32, "secund": F32}):
        for _ in range(2):  # the call that raised has left no compiled program
            with pytest.raises(
                ValueError, match="no layer of network matches 'secund'; did you mean 'second'"
            ):
                _dtypes(run, x)
    assert _dtypes(run, x) == [BF16, BF16]
    assert unamp.current_policy() is None


def test_a_function_without_scopes_says_that_it_has_none() -> None:
    def network(x: Any) -> Any:
        return (x @ W,)

    with (
        unamp.layer_policies(network, {"first": F32}),
        pytest.raises(
            ValueError, match="there are: none .the layers of a function are the named scopes"
        ),
    ):
        network(X)


def test_a_pattern_that_matched_in_one_call_may_match_nothing_in_the_next() -> None:
    def network(x: Any, training: bool) -> Any:
        if training:
            with jax.named_scope("noise"):
                return (x @ W,)
        return (x @ W,)

    with unamp.layer_policies(network, {"noise": F32}):
        with pytest.raises(ValueError, match="no layer of network matches 'noise'"):
            _dtypes(network, X, False)
        assert _dtypes(network, X, True) == [F32]
        assert _dtypes(network, X, False) == [BF16]
    with unamp.layer_policies(network, {"noise": F32}):
        assert _dtypes(network, X, False) == [BF16]  # an earlier call opened the scope


def test_a_class_and_a_result_are_refused() -> None:
    network = _make()
    with pytest.raises(
        unamp.NotExpressible,
        match="':Linear' names a class, and the layers of network are named scopes",
    ):
        unamp.layer_policies(network, {":Linear": F32})
    with pytest.raises(unamp.NotExpressible, match="the rule for 'first' has result='low'"):
        unamp.layer_policies(network, {"first": F32}, result="low")
    assert _dtypes(network) == [BF16, BF16]


class _Own:
    """A class of no library, with a named scope."""

    def __call__(self, x: Any) -> Any:
        with jax.named_scope("own"):
            return (x @ W,)


def test_a_method_has_rules_for_the_calls_on_every_object() -> None:
    for value in (
        _Own(),
        _Own().__call__,
        functools.partial(_make(), X),
        jax.custom_jvp(_make()),
        _Own,
    ):
        with pytest.raises(
            TypeError, match=r"On JAX rules for layers take a function .*Class\.method"
        ):
            unamp.layer_policies(value, {"own": F32})
    with unamp.layer_policies(_Own.__call__, {"own": F32}):
        assert _dtypes(_Own()) == [F32]
    assert _dtypes(_Own()) == [BF16]


def test_scopes_around_the_call_are_not_in_the_names() -> None:
    network = _make()
    with unamp.layer_policies(network, {"second": F32}), jax.named_scope("step"):
        assert _dtypes(network) == [BF16, F32]


def test_rules_hold_inside_the_call_alone() -> None:
    network = _make()

    def other(x: Any) -> Any:
        with jax.named_scope("second"):
            return (x @ W,)

    with unamp.layer_policies(network, {"second": F32}):
        assert _dtypes(other) == [BF16]
        assert _dtypes(network) == [BF16, F32]


def test_a_function_that_is_called_in_two_scopes_is_traced_in_each() -> None:
    product = jax.jit(lambda x: x @ W)

    def network(x: Any) -> Any:
        with jax.named_scope("first"):
            a = product(x)
        with jax.named_scope("second"):
            return a, product(x)

    with unamp.layer_policies(network, {"second": F32}):
        assert _dtypes(network) == [BF16, F32]
        assert _dtypes(jax.jit(network)) == [BF16, F32]
    assert _dtypes(network) == [BF16, BF16]


def test_a_scope_inside_a_jitted_function_has_the_names_around() -> None:
    @jax.jit
    def block(x: Any) -> Any:
        with jax.named_scope("wo"):
            return x @ W

    def network(x: Any) -> Any:
        with jax.named_scope("first"):
            a = block(x)
        with jax.named_scope("second"):
            return a, block(x)

    for run in (network, jax.jit(network)):
        with unamp.layer_policies(network, {"second.wo": F32}):
            assert _dtypes(run) == [BF16, F32]
        assert _dtypes(run) == [BF16, BF16]


def test_scopes_inside_a_loop() -> None:
    def network(x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            with jax.named_scope("step"):
                return carry, x @ W

        with jax.named_scope("loop"):
            return (jax.lax.scan(body, 0.0, None, length=2)[1],)

    for run in (network, jax.jit(network)):
        assert _dtypes(run) == [BF16]
        with unamp.layer_policies(network, {"loop.step": F32}):
            assert _dtypes(run) == [F32]
        assert _dtypes(run) == [BF16]


def test_the_equation_of_an_einsum_is_no_layer() -> None:
    def network(x: Any) -> Any:
        with jax.named_scope("first"):
            return (jnp.einsum("ij,jk->ik", x, W),)

    with unamp.layer_policies(network, {"**": F32}) as rules:
        assert _dtypes(network) == [F32]
        assert dict(rules.layers) == {"first": F32}
    with (
        unamp.layer_policies(network, {"first.**": F32}),
        pytest.raises(ValueError, match=r"no layer of network matches 'first\.\*\*'"),
    ):
        network(X)


def test_a_function_with_rules_inside_another() -> None:
    inner = _make()

    def outer(x: Any) -> Any:
        with jax.named_scope("block"):
            return inner(x)

    def again(x: Any, depth: int = 1) -> Any:
        with jax.named_scope("deep"):
            return (x @ W,) if depth == 0 else again(x, depth - 1)

    with (
        unamp.layer_policies(inner, {"first": F32}),
        unamp.layer_policies(outer, {"block.second": F32}),
    ):
        assert _dtypes(outer) == [F32, F32]
        assert _dtypes(inner) == [F32, BF16]
    with unamp.layer_policies(again, {"deep.deep": F32}):
        assert _dtypes(again) == [F32]


def test_rules_that_are_taken_off_while_a_scope_is_open_end_with_its_call() -> None:
    rules: list[Any] = []

    def network(x: Any) -> Any:
        with jax.named_scope("first"):
            thread = threading.Thread(target=rules[0].remove)
            thread.start()
            thread.join()
            a = x @ W
        with jax.named_scope("first"):
            return a, x @ W

    rules.append(unamp.layer_policies(network, {"first": F32}))
    assert _dtypes(network) == [F32, F32]
    assert unamp.current_policy() is None


def test_a_function_is_let_go_when_its_rules_are() -> None:
    network = _make()
    with unamp.layer_policies(network, {"first": F32}):
        network(X)
    gone = weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None


def _mlp(x: Any) -> Any:
    return hk.nets.MLP([4, 4])(x), hk.remat(hk.Linear(4, name="last"))(x)


@pytest.mark.parametrize("transform", [hk.transform, hk.transform_with_state])
def test_what_haiku_transformed(transform: Any) -> None:
    made = transform(_mlp)
    initial = made.init(KEY, X)
    variables = (initial,) if transform is hk.transform else initial

    def run(x: Any) -> Any:
        found = made.apply(*variables, None, x)
        return found if transform is hk.transform else found[0]

    # The bias of a haiku layer is an addition of its own, in float32.
    def computed(x: Any) -> list[str]:
        with unamp.trace() as trace, unamp.autocast(dtype=BF16):
            run(x)
        return [
            f"{record.layer} {record.compute}" for record in trace.records if record.op == "matmul"
        ]

    low = ["mlp.linear_0 bfloat16", "mlp.linear_1 bfloat16", "last bfloat16"]
    assert computed(X) == low
    with unamp.layer_policies(made, {"mlp.linear_1": F32, "last": F32}) as rules:
        assert computed(X) == [low[0], "mlp.linear_1 float32", "last float32"]
        jitted = jax.jit(made.apply)(*variables, None, X)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, jitted, made.apply(*variables, None, X)))
        assert dict(rules.layers) == {"mlp.linear_1": F32, "last": F32}
    with (
        unamp.layer_policies(made, {"mlp.linear_2": F32}),
        pytest.raises(
            ValueError,
            match=rf"no layer of {type(made).__name__}\.apply matches 'mlp.linear_2'; did you mean",
        ),
    ):
        run(X)
    assert computed(X) == low
