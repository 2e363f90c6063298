"""`unamp.trace(gradients=True)` records the gradients of JAX's operations."""

from __future__ import annotations

import differentiated
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from differentiated import test_every_framework_promises  # noqa: F401
from flax import linen, nnx

import unamp


class Net(nnx.Module):
    """Layers with state, with random numbers, and with several results."""

    def __init__(self, scale: float = 1.0) -> None:
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(8, 16, rngs=rngs)
        self.second = nnx.Linear(16, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(16, 4, rngs=rngs)
        self.scale = scale

    def __call__(self, x):
        h = self.second(jax.nn.relu(self.first(x))) * self.scale
        return self.last(self.drop(self.norm(h)) if self.scale == 1.0 else h)


X = jnp.linspace(-1.0, 1.0, 32, dtype=jnp.float32).reshape(4, 8)


def loss(net: Net, x):
    return jax.nn.log_softmax(net(x)).sum()


def test_a_layer_is_named() -> None:
    net = Net(1e-9)
    differentiated.a_layer_is_named(lambda: nnx.grad(lambda net: net(X).sum())(net), "Net.second")


def test_a_loss_scale_is_told() -> None:
    differentiated.a_loss_scale_is_told(
        lambda scaler: jax.grad(lambda x: scaler.scale(jnp.exp(x).sum()))(X)
    )


@pytest.mark.parametrize(
    "region", [{"enabled": False}, {"dtype": "bfloat16"}, {"dtype": "float16", "level": "O3"}]
)
@pytest.mark.parametrize(
    "differentiated_by", [nnx.value_and_grad, lambda f: nnx.jit(nnx.value_and_grad(f))]
)
def test_a_trace_changes_nothing(region, differentiated_by) -> None:
    def run(trace):
        net = Net()
        with trace, jax.disable_jit(), unamp.autocast(**region):
            value, grads = differentiated_by(loss)(net, X)
        leaves = [value, *jax.tree.leaves(grads), *jax.tree.leaves(nnx.state(net, nnx.BatchStat))]
        return [np.asarray(leaf).astype(np.float32) for leaf in leaves]

    differentiated.gradients_do_not_depend_on_a_trace(run)


def test_parameters_have_theirs() -> None:
    net = Net(0.5)  # without random numbers

    def run():
        grads = nnx.grad(lambda net: loss(net, X) + loss(net, X * 2.0))(net)
        paths = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(grads))
        return {".".join(["Net", *(str(key.key) for key in path)]): leaf for path, leaf in paths}

    differentiated.parameters_have_theirs(run)


def test_parameters_that_are_values_have_the_names_of_their_layers_or_of_their_places() -> None:
    net = linen.Dense(3)
    variables = net.init(jax.random.key(0), X)

    def run(variables, scale, shift):
        return (net.apply(variables, X) * scale["scale"] + shift).sum()

    with unamp.trace(gradients=True) as trace:
        jax.grad(run, argnums=(0, 1, 2))(variables, {"scale": 2.0}, jnp.ones(()))
        jax.grad(lambda several: run(*several, 1.0))([variables, {"scale": 2.0}])
    assert [each.parameter for each in trace.gradients if each.parameter] == [
        "Dense.bias", "Dense.kernel", "1.scale", "0.params.bias", "0.params.kernel", "1.scale",
    ]  # fmt: skip


def test_a_later_backward_pass_is_not_recorded() -> None:
    def forward():
        value, back = jax.vjp(lambda x: jnp.exp(x).sum(), X)
        return lambda: back(jnp.ones_like(value))

    differentiated.a_later_backward_pass_is_not_recorded(forward)


def test_no_graph_is_kept() -> None:
    def made():
        net = Net()
        grads = nnx.grad(loss)(net, X)
        yield net
        yield from jax.tree.leaves(grads)
        _, back = jax.vjp(lambda x: jnp.exp(x).sum(), X)
        yield back

    differentiated.no_graph_is_kept(made)


def test_values_and_gradients_together_belong_together() -> None:
    """With values, a record is made only when its numbers arrive.

    The gradient must belong to it all the same.
    """
    with unamp.trace(gradients=True, values=True) as trace:
        jax.grad(lambda x: (jnp.exp(x) * 2.0).sum())(X)
    found = {trace.records[each.record].op: each for each in trace.gradients}
    assert found["exp"].values.max_abs == 2.0
    assert [record.values is not None for record in trace.records] == [True] * len(trace.records)


def test_every_transformation_runs_as_it_does_without() -> None:
    def f(x):
        return (jnp.exp(jnp.sin(x)) * 2.0).sum()

    transformed = {
        "jvp": lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),)),
        "hessian": jax.hessian(f),
        "vmap of grad": lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, x])),
        "grad of vmap": jax.grad(lambda x: jax.vmap(f)(jnp.stack([x, x])).sum()),
        "checkpoint": jax.grad(jax.checkpoint(f)),
        "jit": jax.jit(jax.grad(f)),
        "scan": jax.grad(
            lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0].sum()
        ),
        "linearize": lambda x: jax.linearize(f, x)[1](x),
    }
    x = jnp.linspace(0.1, 1.0, 3)
    for name, run in transformed.items():
        with jax.disable_jit():
            plain = run(x)
        with unamp.trace(gradients=True) as trace:
            traced = run(x)
        for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(traced), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)
        if name not in ("jvp", "linearize"):
            assert trace.gradients, name


def test_a_batch_inside_of_vmap_is_named() -> None:
    with unamp.trace(gradients=True) as trace:
        jax.vmap(jax.grad(lambda x: jnp.exp(jnp.sin(x)).sum()))(X)
    assert "inside of jax.vmap there is one for each of a batch" in trace.gradient_table()
