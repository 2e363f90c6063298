"""`unamp.layer_policies` on JAX: flax nnx and linen, equinox, haiku, Keras, named scopes."""

from __future__ import annotations

import threading
import types
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import keras
import keras_ruled
import numpy as np
import pytest
import ruled
from flax import linen, nnx
from ruled import BF16, EXPECTED, F32, LOW, RULE
from unamp_conformance.check.layerchecks import check_layers
from unamp_conformance.subjects import Subject
from unamp_jax import layers, scope_rules

import unamp
from unamp import amp_warnings
from unamp.adapter.layered_networks import LAYER_WAYS

KEY = jax.random.key(0)
X = jnp.linspace(-1, 1, 8).reshape(2, 4)
ALL_LOW = [BF16] * 4


class _Equinox(eqx.Module):
    wi: eqx.nn.Linear
    wo: eqx.nn.Linear

    def __call__(self, x: Any) -> Any:
        return jax.vmap(self.wi)(x), jax.vmap(self.wo)(x)


class _EquinoxNet(eqx.Module):
    first: _Equinox
    second: _Equinox

    def __call__(self, x: Any) -> Any:
        return (*self.first(x), *self.second(x))


def _equinox() -> Any:
    def block() -> _Equinox:
        return _Equinox(eqx.nn.Linear(4, 4, key=KEY), eqx.nn.Linear(4, 4, key=KEY))

    return _EquinoxNet(block(), block())


class _Nnx(nnx.Module):
    def __init__(self) -> None:
        self.wi, self.wo = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 4, rngs=nnx.Rngs(1))

    def __call__(self, x: Any) -> Any:
        return self.wi(x), self.wo(x)


class _NnxNet(nnx.Module):
    def __init__(self) -> None:
        self.first, self.second = _Nnx(), _Nnx()

    def __call__(self, x: Any) -> Any:
        return (*self.first(x), *self.second(x))


class _Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(4, name="wi")(x), linen.Dense(4, name="wo")(x)


class _LinenNet(linen.Module):
    def setup(self) -> None:
        self.first, self.second = _Linen(), _Linen()

    def __call__(self, x: Any) -> Any:
        return (*self.first(x), *self.second(x))


def _linen() -> Any:
    made = _LinenNet()
    return made.bind(made.init(KEY, X))


def _keras() -> Any:
    return keras_ruled.made(X)


def _scopes() -> Any:
    """Return a function whose layers are named scopes, opened in each possible way."""
    leaf = jnp.linspace(-1, 1, 16).reshape(4, 4)

    @jax.named_scope("wo")
    def wo(x: Any, leaf: Any) -> Any:
        return x @ leaf

    def network(x: Any, leaves: Any = (leaf, leaf + 1, leaf + 2, leaf + 3)) -> Any:
        with jax.named_scope("first"):
            with jax.named_scope("wi"):
                first = x @ leaves[0]
            second = wo(x, leaves[1])
        with jax.named_scope("second/wi"):
            third = x @ leaves[2]
        return first, second, third, jax.named_call(wo, name="second")(x, leaves[3])

    return network


class _Haiku(hk.Module):
    def __call__(self, x: Any) -> Any:
        # Without a bias: its addition would be an operation of its own.
        return hk.Linear(4, with_bias=False, name="wi")(x), hk.Linear(
            4, with_bias=False, name="wo"
        )(x)


def _haiku() -> Any:
    def blocks(x: Any) -> Any:
        return (*_Haiku(name="first")(x), *_Haiku(name="second")(x))

    made = hk.without_apply_rng(hk.transform(blocks))
    initial = made.init(KEY, X)

    def network(x: Any, leaves: Any = initial) -> Any:
        return made.apply(leaves, x)

    return network


def _pure(network: Any) -> tuple[Any, Any]:
    """Return a network as a function of its leaves and an input, and its leaves."""
    if isinstance(network, types.FunctionType):
        return (lambda leaves, x: network(x, leaves)), network.__defaults__[0]
    if isinstance(network, nnx.Module):
        graph, state = nnx.split(network)
        return (lambda leaves, x: nnx.merge(graph, leaves)(x)), state
    if isinstance(network, linen.Module):
        return network.unbind()[0].apply, network.variables
    if isinstance(network, keras.Model):
        leaves = [variable.value for variable in network.trainable_variables]
        return (lambda leaves, x: network.stateless_call(leaves, [], x)[0]), leaves
    leaves, static = eqx.partition(network, eqx.is_array)
    return (lambda leaves, x: eqx.combine(leaves, static)(x)), leaves


def _losses(make: Any) -> Any:
    def losses(rules: Any) -> list[float]:
        network = make()
        run, leaves = _pure(network)
        # The kernels of `wo` turn ones into 72000, beyond float16's largest number.
        leaves = jax.tree.map(
            lambda leaf: jnp.full_like(leaf, 18000.0 if leaf.ndim == 2 else 0.0), leaves
        )
        handle = unamp.layer_policies(network, rules) if rules else None

        @jax.jit
        def step(leaves: Any) -> Any:
            def loss(leaves: Any) -> Any:
                with unamp.autocast(dtype="float16"):
                    return jnp.mean(
                        (jnp.float32(run(leaves, jnp.ones((2, 4)))[1]) / 72000 - 2) ** 2
                    )

            value, gradients = jax.value_and_grad(loss)(leaves)
            return value, jax.tree.map(
                lambda leaf, gradient: leaf - 1e8 * gradient, leaves, gradients
            )

        found = []
        for _ in range(4):
            value, leaves = step(leaves)
            found.append(float(value))
        if handle:
            handle.remove()
        return found

    return losses


def _share(network: Any) -> None:
    object.__setattr__(network.second, "wo", network.first.wo)


def _of(make: Any) -> ruled.Layers:
    return ruled.Layers(
        make,
        X,
        dtype=lambda tensor: str(tensor.dtype),
        numbers=lambda tensor: np.asarray(tensor.astype("float32")),
        first="first",
        second="second",
        share=_share,
        low=lambda tensor: tensor.astype("bfloat16"),
        losses=_losses(make),
    )


MAKERS = {
    "equinox": _equinox, "nnx": _NnxNet, "linen": _linen, "keras": _keras, "haiku": _haiku,
    "scopes": _scopes,
}  # fmt: skip
OF = {name: _of(make) for name, make in MAKERS.items()}
#: Tested on equinox alone: linen makes its layers in each call, nnx has one name for each, and
#: Keras copies its lists of layers.
SHARING = ruled.the_last_pattern_counts_for_shared_layers
#: Not tested on linen, whose layers have no class before they are called; see below.
CLASSES = ruled.silence_is_an_error
#: Named scopes have no names before they open, and no class or result; see test_scope_rules.py.
NO_SCOPES = (
    ruled.holds_until_it_is_removed,
    ruled.results_go_back_to_low,
    ruled.a_rule_covers_what_the_layer_calls,
)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    own = nnx.Linear.__call__
    yield
    assert layers._KEY._obj.get_global() is None
    assert not layers._in_force.rules
    assert scope_rules._KEY._obj.get_global() is None
    assert not scope_rules._scopes.applied
    assert nnx.Linear.__call__ is own


PROMISED = [
    (promise, library)
    for promise in ruled.PROMISES
    for library in MAKERS
    if promise not in (SHARING, CLASSES)
    and not (promise in NO_SCOPES and library in ("haiku", "scopes"))
]


@pytest.mark.parametrize(("promise", "library"), PROMISED)
def test_promises(promise: Any, library: str) -> None:
    promise(OF[library])


@pytest.mark.parametrize("library", ["equinox", "nnx", "keras"])
def test_a_pattern_that_matches_nothing_is_an_error(library: str) -> None:
    CLASSES(OF[library])


def test_a_layer_of_keras_that_is_quantized_later_is_refused() -> None:
    keras_ruled.a_layer_that_is_quantized_later_is_refused(OF["keras"])


def test_shared_layers_of_equinox_have_the_last_rule() -> None:
    SHARING(OF["equinox"])


def test_linen_says_what_it_does_not_know() -> None:
    network = _linen()
    with pytest.raises(
        unamp.NotExpressible, match=r"give layer_policies network.bind\(variables\)"
    ):
        unamp.layer_policies(_LinenNet(), RULE)
    with pytest.raises(unamp.NotExpressible, match="have no class before they are called"):
        unamp.layer_policies(network, {":Dense": F32})
    with pytest.raises(ValueError, match="did you mean"):
        unamp.layer_policies(network, {"**.w0": F32})
    assert OF["linen"].dtypes(network) == ALL_LOW


class _Way(NamedTuple):
    name: str
    make: Any


WAYS = (
    _Way("eager", lambda run: run),
    _Way("jit", jax.jit),
    _Way("vmap", lambda run: lambda leaves, x: jax.vmap(run, (None, 0))(leaves, x[None])),
    _Way(
        "scan",
        lambda run: (
            lambda leaves, x: jax.lax.scan(
                lambda carry, each: (carry, run(leaves, each)), 0.0, x[None]
            )[1]
        ),
    ),
    _Way("remat", jax.checkpoint),
    _Way("jit of remat", lambda run: jax.jit(jax.checkpoint(run))),
    _Way(
        "jit of vmap of jit",
        lambda run: jax.jit(lambda leaves, x: jax.vmap(jax.jit(run), (None, 0))(leaves, x[None])),
    ),
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize("library", MAKERS)
def test_transformed_functions_follow_the_rules_of_the_moment(library: str, way: _Way) -> None:
    network, of = MAKERS[library](), OF[library]
    run, leaves = _pure(network)
    made = way.make(run)

    def function(x: Any) -> Any:
        return made(leaves, x)

    assert of.dtypes(function) == ALL_LOW
    for _ in range(2):
        with unamp.layer_policies(network, RULE):
            assert of.dtypes(function) == EXPECTED
        assert of.dtypes(function) == ALL_LOW
        with unamp.layer_policies(network, {"**.wi": F32}):
            assert of.dtypes(function) == [F32, BF16, F32, BF16]
    with unamp.layer_policies(network, {"**.wi": LOW}):
        assert of.dtypes(function, region=False) == [BF16, F32, BF16, F32]
    assert of.dtypes(function, region=False) == [F32] * 4


@pytest.mark.parametrize("library", MAKERS)
def test_gradients_are_those_of_the_rules(library: str) -> None:
    network = MAKERS[library]()
    run, leaves = _pure(network)

    def loss(leaves: Any) -> Any:
        with unamp.autocast(dtype="bfloat16"):
            return sum(jnp.sum(jnp.float32(result) ** 2) for result in run(leaves, X))

    def exact_loss(leaves: Any) -> Any:
        return sum(jnp.sum(result**2) for result in run(leaves, X))

    def gradients(of: Any) -> list[Any]:
        return jax.tree.leaves(of(leaves))

    exact, low = gradients(jax.grad(exact_loss)), gradients(jax.grad(loss))
    assert not all(np.array_equal(own, other) for own, other in zip(low, exact, strict=True))
    for way in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.checkpoint(loss))):
        with unamp.layer_policies(network, {"**": F32}):
            found = gradients(way)
        assert all(leaf.dtype == jnp.float32 for leaf in found)
        for own, other in zip(found, exact, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)
        assert all(
            np.array_equal(own, other)
            for own, other in zip(gradients(jax.grad(loss)), low, strict=True)
        )


@pytest.mark.parametrize("library", MAKERS)
def test_a_function_is_compiled_once_for_each_set_of_rules(library: str) -> None:
    network = MAKERS[library]()
    run, leaves = _pure(network)
    traced = []

    @jax.jit
    def function(leaves: Any, x: Any) -> Any:
        traced.append(None)
        return run(leaves, x)

    for _ in range(3):
        function(leaves, X)
        with unamp.layer_policies(network, RULE):
            function(leaves, X)
    assert len(traced) == 2


@pytest.mark.parametrize("library", MAKERS)
def test_rules_hold_in_other_threads_and_for_this_network_alone(library: str) -> None:
    network, of = MAKERS[library](), OF[library]
    other, found = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), []
    with unamp.layer_policies(network, RULE):
        thread = threading.Thread(target=lambda: found.extend(of.dtypes(network)))
        thread.start()
        thread.join()
        with unamp.autocast(dtype="bfloat16"):
            assert other(X).dtype == jnp.bfloat16
    assert found == EXPECTED


@pytest.mark.parametrize("library", MAKERS)
def test_a_file_of_rules(library: str, tmp_path: Path) -> None:
    network, path = MAKERS[library](), tmp_path / "precision.toml"
    path.write_text(
        unamp.Precision(unamp.Policy(dtype="bfloat16"), unamp.LayerRules(RULE)).to_toml(), "utf-8"
    )
    found = unamp.Precision.read(path)
    with unamp.layer_policies(network, found.layers), unamp.policy_region(found.policy):
        assert [str(result.dtype) for result in network(X)] == EXPECTED


def test_copies_of_a_network_have_its_rules_until_they_are_removed() -> None:
    network = _equinox()
    rules = unamp.layer_policies(network, RULE)
    trained = jax.tree.map(lambda leaf: leaf * 2, network)
    assert OF["equinox"].dtypes(trained) == EXPECTED
    rules.remove()
    assert OF["equinox"].dtypes(trained) == ALL_LOW


class _Listed(nnx.Module):
    def __init__(self) -> None:
        self.blocks = nnx.List([_Nnx(), _Nnx()])


def test_a_mere_list_of_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="'blocks', a List, which is never called itself"):
        unamp.layer_policies(_Listed(), {"blocks": F32})


class _Checkpointed(eqx.Module):
    blocks: list[_Equinox]

    def __call__(self, x: Any) -> Any:
        return sum(
            (eqx.filter_checkpoint(lambda block, x: block(x))(block, x) for block in self.blocks),
            (),
        )


def test_a_layer_that_a_transformation_makes_again_is_found_or_it_is_refused() -> None:
    inside = _equinox()
    network = _Checkpointed([inside.first, inside.second])
    of = OF["equinox"]
    with unamp.layer_policies(network, RULE):
        assert of.dtypes(eqx.filter_jit(network)) == EXPECTED
    with (
        unamp.layer_policies(network, {"blocks.0.wo": F32}),
        pytest.raises(
            unamp.NotExpressible, match=r"'blocks.0' and 'blocks.1' have different rules"
        ),
    ):
        of.dtypes(network)
    assert of.dtypes(network) == ALL_LOW


class _Lifted(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return (
            *linen.jit(_Linen)(name="first")(x),
            *linen.jit(linen.remat(_Linen))(name="second")(x),
        )


def test_lifted_transformations_of_linen() -> None:
    made = _Lifted()
    variables = made.init(KEY, X)
    with unamp.layer_policies(made.bind(variables), {"second.wo": F32}):
        for run in (made.apply, jax.jit(made.apply)):
            assert OF["linen"].dtypes(lambda x, run=run: run(variables, x)) == [
                BF16,
                BF16,
                BF16,
                F32,
            ]


class _TaughtEquinox(eqx.Module):
    own: _Equinox

    def __call__(self, x: Any, teacher: Any) -> Any:
        return (*self.own(x), *teacher(x), jax.vmap(teacher.wo)(x))


class _TaughtNnx(nnx.Module):
    def __init__(self) -> None:
        self.own = _Nnx()

    def __call__(self, x: Any, teacher: Any) -> Any:
        return (*self.own(x), *teacher(x), teacher.wo(x))


class _ApartEquinox(eqx.Module):
    """A network of another class, with layers of the same class."""

    wi: eqx.nn.Linear
    wo: eqx.nn.Linear

    def __call__(self, x: Any) -> Any:
        return jax.vmap(self.wi)(x), jax.vmap(self.wo)(x)


class _ApartNnx(_Nnx):
    pass


def _teachers() -> list[tuple[Any, Any]]:
    made = [eqx.nn.Linear(4, 4, key=KEY) for _ in range(2)]
    return [(_TaughtEquinox(_equinox().first), _ApartEquinox(*made)), (_TaughtNnx(), _ApartNnx())]


_HANDED_ON: dict[str, Any] = {
    "called": lambda net, teacher: net(X, teacher),
    "arguments of jit": jax.jit(lambda net, teacher: net(X, teacher)),
    "one argument of jit": lambda net, teacher: jax.jit(lambda teacher: net(X, teacher))(teacher),
    "closed over": lambda net, teacher: jax.jit(lambda net: net(X, teacher))(net),
    "differentiated": lambda net, teacher: jax.vjp(lambda teacher: net(X, teacher), teacher)[0],
    "batched": lambda net, teacher: jax.jit(
        lambda net, teacher: jax.vmap(lambda x: net(x, teacher))(jnp.stack([X, X])),
    )(net, teacher),
}


@pytest.mark.parametrize("way", _HANDED_ON)
@pytest.mark.parametrize("library", [0, 1], ids=["equinox", "nnx"])
def test_layers_of_another_network_have_no_rule_of_their_like(library: int, way: str) -> None:
    net, teacher = _teachers()[library]
    with (
        unamp.autocast(dtype="bfloat16"),
        unamp.layer_policies(net, {"own.wo": F32}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", unamp.AmpWarning)
        assert [str(each.dtype) for each in _HANDED_ON[way](net, teacher)] == [
            BF16,
            F32,
            BF16,
            BF16,
            BF16,
        ]


class _Product(eqx.Module):
    """A layer without arrays."""

    def __call__(self, x: Any) -> Any:
        return x @ x.T


class _Products(eqx.Module):
    linear: eqx.nn.Linear
    product: _Product

    def __call__(self, x: Any, *others: Any) -> Any:
        return (self.product(jax.vmap(self.linear)(x)), *(other(x)[0] for other in others))


class _OtherProducts(_Products):
    pass


def test_layers_without_arrays_are_of_the_network_that_calls_them() -> None:
    linears = [eqx.nn.Linear(4, 4, key=KEY) for _ in range(2)]
    net, other = _Products(linears[0], _Product()), _OtherProducts(linears[1], _Product())
    own = eqx.filter_checkpoint(lambda x: net.product(x))
    with unamp.autocast(dtype="bfloat16"), unamp.layer_policies(net, {"product": F32}):
        for run in (net, eqx.filter_jit(net)):
            assert [str(each.dtype) for each in run(X, other, lambda x: [own(x)])] == [
                F32,
                BF16,
                F32,
            ]


def test_a_layer_of_another_network_that_is_called_directly_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amp_warnings, "_given", set())
    linears = [eqx.nn.Linear(4, 4, key=KEY) for _ in range(2)]
    net, other = _Products(linears[0], _Product()), _OtherProducts(linears[1], _Product())
    said = (
        "a Linear was called inside _Products, which has a rule for 'linear': "
        "the Linear has none of its arrays"
    )
    with unamp.autocast(dtype="bfloat16"), unamp.layer_policies(net, {"linear": F32}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net(X, other)  # in its own network's call, the layer is not mistaken for `net`'s
        with pytest.warns(unamp.AmpWarning, match=said):
            assert net(X, lambda x: [jax.vmap(other.linear)(x)])[1].dtype == BF16


class _Scaled(eqx.Module):
    wo: eqx.nn.Linear

    def __call__(self, x: Any) -> Any:
        scaled = eqx.tree_at(lambda layer: layer.weight, self.wo, self.wo.weight * 2)
        return (jax.vmap(scaled)(x), jax.vmap(eqx.nn.inference_mode(self.wo))(x))


def test_a_layer_with_other_weights_and_the_same_bias_has_the_rule() -> None:
    net = _Scaled(eqx.nn.Linear(4, 4, key=KEY))
    with unamp.autocast(dtype="bfloat16"), unamp.layer_policies(net, {"wo": F32}):
        for run in (net, jax.jit(lambda x: net(x)), lambda x: jax.jit(lambda net: net(x))(net)):
            assert [str(each.dtype) for each in run(X)] == [F32, F32]


class _TaughtLinen(linen.Module):
    def setup(self) -> None:
        self.own, self.wo = _Linen(), linen.Dense(4)

    def __call__(self, x: Any, teacher: Any) -> Any:
        lifted = linen.remat(lambda net, x: net.wo(x))(self, x)
        return (*self.own(x), lifted, *teacher(x))


class _ApartLinen(linen.Module):
    """A network of another class, whose layers have the same names."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        return (*_Linen(name="own")(x), linen.Dense(4, name="wo")(x))


class _BothLinen(linen.Module):
    def setup(self) -> None:
        self.student, self.teacher = _TaughtLinen(), _ApartLinen()

    def __call__(self, x: Any) -> Any:
        return self.student(x, self.teacher)


@pytest.mark.parametrize("jitted", [False, True])
def test_layers_of_another_network_of_linen_have_no_rule_of_the_same_name(jitted: bool) -> None:
    both, net, other = _BothLinen(), _TaughtLinen(), _ApartLinen()
    variables = both.init(KEY, X)
    student, teacher = ({"params": variables["params"][name]} for name in ("student", "teacher"))
    runs: list[Any] = [
        lambda x: both.apply(variables, x),
        lambda x: net.apply(student, x, lambda x: other.apply(teacher, x)),
    ]
    with (
        unamp.autocast(dtype="bfloat16"),
        unamp.layer_policies(net.bind(student), {"own.wo": F32, "wo": F32}),
    ):
        for run in runs:
            found = (jax.jit(run) if jitted else run)(X)
            assert [str(each.dtype) for each in found] == [BF16, F32, F32, BF16, BF16, BF16]


def test_predict_follows_rules() -> None:
    network = _keras()
    with unamp.autocast(dtype="bfloat16"):
        for _ in range(2):
            with unamp.layer_policies(network, RULE):
                assert [
                    str(result.dtype) for result in network.predict(np.asarray(X), verbose=0)
                ] == EXPECTED
            assert [
                str(result.dtype) for result in network.predict(np.asarray(X), verbose=0)
            ] == ALL_LOW


@pytest.mark.parametrize("make", [_equinox, _NnxNet])
def test_a_layer_that_is_called_by_itself_is_warned_of(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amp_warnings, "_given", set())
    net = make()
    with unamp.layer_policies(net, {"first": "float32"}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net(X)  # in the network's call the rule holds
        with pytest.warns(
            unamp.AmpWarning, match="was called by itself, and .* has a rule for 'first'"
        ):
            net.first(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.first(X)


def test_a_layer_that_equinox_wraps_and_is_called_by_itself_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amp_warnings, "_given", set())
    net = _equinox()
    with (
        unamp.layer_policies(net, {"first": "float32"}),
        pytest.warns(unamp.AmpWarning, match="was called by itself, and .* has a rule for 'first'"),
    ):
        eqx.filter_jit(net.first)(X)


@pytest.mark.parametrize("way", LAYER_WAYS)
def test_conformance_sees_a_rule_that_is_lost(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Subject("jax", "cpu"), way, "float32 in a low region", unamp.Policy("O1", "bfloat16")
    assert check_layers(*given).status == "passed"
    monkeypatch.setattr(layers._Network, "region", lambda self, name: None)
    jax.clear_caches()
    found = check_layers(*given)
    assert found.status == "failed"
    assert found.message == "under the rules block.second is bfloat16, and must be float32"
