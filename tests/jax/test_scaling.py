"""Loss scaling works outside of jit and inside, with low parameters and master weights."""

from __future__ import annotations

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unamp_jax import loss_scaling, low_parameters, with_master_weights

import unamp
from unamp.scaling.loss_scale import LossScale

X = jax.random.normal(jax.random.key(0), (16, 8))
Y = jax.random.normal(jax.random.key(1), (16, 4))
W = {"w": jax.random.normal(jax.random.key(2), (8, 4)) / 3, "b": jnp.zeros(4)}
ADJUST = jax.jit(loss_scaling.adjust)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.booleans(), max_size=40),
    st.sampled_from(
        [
            (2.0**16, 2.0, 0.5, 3, 1),
            (1e38, 3.0, 0.3, 2, 2),
            (2.0**-125, 1.7, 0.1, 1, 1),
            (7.0, 2.0, 0.5, 4, 3),
        ]
    ),
    st.booleans(),
)
def test_the_pure_scale_moves_as_the_scalers(overflows, rules, bounded):
    bounds = (
        {"minimum": 2.0**-100, "maximum": 2.0**20}
        if bounded and 2.0**-100 <= rules[0] <= 2.0**20
        else {}
    )
    expected = LossScale(*rules, **bounds).checked()
    state = loss_scaling.of(expected)
    for overflow in overflows:
        expected, state = expected.after(overflow), ADJUST(state, jnp.asarray(not overflow))
        assert float(state.scale) == expected.scale
        assert (int(state.growth_tracker), int(state.backoff_tracker)) == (
            expected.growth_tracker,
            expected.backoff_tracker,
        )
    assert int(state.skipped) == sum(overflows)


def loss(parameters, x, y):
    return jnp.mean((jnp.tanh(x @ parameters["w"] + parameters["b"]) - y) ** 2)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_jitted_step_skips_what_overflows_and_goes_on(level):
    transformation = optax.adam(1e-2)
    counted = []

    @jax.jit
    def step(parameters, opt_state, state):
        counted.append(1)

        def scaled(parameters):
            with unamp.autocast(level=level, dtype="float16"):
                return loss_scaling.scale(state, loss(parameters, X, Y))

        gradients, finite = loss_scaling.unscale(state, jax.grad(scaled)(parameters))
        parameters, opt_state = loss_scaling.step(
            transformation, finite, gradients, opt_state, parameters
        )
        return parameters, opt_state, loss_scaling.adjust(state, finite), finite

    parameters, opt_state, state = W, transformation.init(W), loss_scaling.init(2.0**24)
    taken = []
    for _ in range(30):
        parameters, opt_state, state, finite = step(parameters, opt_state, state)
        taken.append(bool(finite))
    assert not taken[0]
    assert taken[-1]
    assert int(opt_state[0].count) == sum(taken)
    assert int(state.skipped) == len(taken) - sum(taken)
    assert counted == [1]
    assert loss(parameters, X, Y) < loss(W, X, Y)


def test_float16_gradients_are_refused():
    with pytest.raises(ValueError, match="float16 gradients"):
        loss_scaling.unscale(loss_scaling.init(), {"w": jnp.ones(3, jnp.float16)})


def test_a_scale_is_no_constant_of_a_program():
    scaler = unamp.GradScaler()
    with pytest.raises(unamp.NotExpressible, match=r"unamp_jax\.loss_scaling"):
        jax.jit(lambda x: scaler.scale(x.sum()))(X)
    assert jax.grad(lambda x: scaler.scale(x.sum()))(X)[0, 0] == 2.0**16


def test_an_optax_transformation_is_sent_to_the_pure_functions():
    scaler = unamp.GradScaler()
    for step in (scaler.step, scaler.unscale_):  # before a loss is scaled; below, after
        with pytest.raises(unamp.NotExpressible, match=r"unamp_jax\.loss_scaling"):
            step(optax.sgd(0.1), gradients=W)
    scaler.scale(jnp.float32(1.0))
    with pytest.raises(unamp.NotExpressible, match=r"unamp_jax\.loss_scaling"):
        scaler.step(optax.sgd(0.1), gradients=W)


class Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first, self.norm = nnx.Linear(8, 16, rngs=rngs), nnx.BatchNorm(16, rngs=rngs)
        self.last = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.norm(self.first(x))))


def squared(net, scaler=None):
    found = jnp.mean((jnp.float32(net(X)) - Y) ** 2)
    return scaler.scale(found) if scaler else found


def test_a_scaler_steps_an_optimizer_of_nnx_and_skips():
    net = Net()
    optimizer, scaler = (
        nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param),
        unamp.GradScaler(init_scale=2.0**10),
    )
    before = squared(net)
    for _ in range(5):
        with unamp.autocast(dtype="float16"):
            gradients = nnx.grad(squared)(net, scaler)
        assert scaler.step(optimizer, net, gradients=gradients)
        scaler.update()
    assert squared(net) < before
    bad = jax.tree.map(lambda g: g * jnp.inf, gradients)
    kernel = net.first.kernel.get_value()
    assert not scaler.step(optimizer, net, gradients=bad)
    assert np.array_equal(net.first.kernel.get_value(), kernel)
    scaler.update()
    assert scaler.get_scale() == 2.0**9
    assert "first" in scaler.first_nonfinite(optimizer, gradients=bad)


def test_a_step_takes_no_scaled_gradients_beside_those_that_it_unscales():
    """A line search computes the gradients again; it takes them by the name `grad`."""
    net = Net()
    search = optax.chain(
        optax.sgd(0.1), optax.scale_by_backtracking_linesearch(max_backtracking_steps=4)
    )
    optimizer, scaler = (
        nnx.Optimizer(net, search, wrt=nnx.Param),
        unamp.GradScaler(init_scale=2.0**10),
    )
    gradients, kernel = nnx.grad(squared)(net, scaler), net.first.kernel.get_value()
    graph, _, rest = nnx.split(net, nnx.Param, ...)
    arguments = {
        "value": squared(net),
        "value_fn": lambda new: squared(nnx.merge(graph, new, rest, copy=True)),
    }
    with pytest.raises(ValueError, match="scaled gradients a second time"):
        scaler.step(optimizer, net, gradients=gradients, grad=gradients, **arguments)
    assert np.array_equal(net.first.kernel.get_value(), kernel)
    unscaled, before = scaler.unscale_(optimizer, gradients), arguments["value"]
    with pytest.raises(ValueError, match="hand over the ones that it returned"):
        scaler.step(optimizer, net, gradients=gradients)
    assert scaler.step(optimizer, net, gradients=unscaled, grad=unscaled, **arguments)
    assert squared(net) < before


def test_decorate_changes_a_module_where_it_is_and_its_masters_take_float32_steps(low):
    net, plain = Net(), Net()
    optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)
    reference = nnx.Optimizer(plain, optax.adam(1e-3), wrt=nnx.Param)
    assert unamp.decorate(net, optimizer, level="O2", dtype=jnp.dtype(low).name) == (net, optimizer)
    assert net.first.kernel.get_value().dtype == low
    assert net.norm.scale.get_value().dtype == jnp.float32
    for _ in range(20):
        with unamp.autocast(level="O2", dtype=jnp.dtype(low).name):
            gradients = nnx.grad(squared)(net)
        optimizer.update(net, gradients)
        wide = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
        reference.update(plain, wide)
        masters = optimizer.opt_state.masters["first"]["kernel"].get_value()
        assert np.array_equal(masters, plain.first.kernel.get_value())
        assert np.array_equal(net.first.kernel.get_value(), masters.astype(low))
    with pytest.raises(ValueError, match="decorated already"):
        unamp.decorate(Net(), optimizer, level="O2", dtype="bfloat16")
    with pytest.raises(ValueError, match="already"):
        unamp.decorate(net, level="O2", dtype="bfloat16")


def test_masters_of_values_take_float32_steps_inside_a_region_too(low):
    transformation = with_master_weights(optax.adam(1e-3), masters=W)
    reference = optax.adam(1e-3)
    parameters, plain = low_parameters(W, low, keep=lambda name: "b" in name), W
    assert (parameters["w"].dtype, parameters["b"].dtype) == (low, jnp.float32)
    state, plain_state = transformation.init(parameters), reference.init(W)
    for _ in range(20):
        with unamp.autocast(level="O2", dtype="bfloat16"):
            gradients = jax.grad(lambda p: jnp.float32(loss(p, X, Y)))(parameters)
            updates, state = transformation.update(gradients, state, parameters)
            parameters = optax.apply_updates(parameters, updates)
        wide = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
        updates, plain_state = reference.update(wide, plain_state, plain)
        plain = optax.apply_updates(plain, updates)
        assert np.array_equal(state.masters["w"], plain["w"])
        assert np.array_equal(parameters["w"], plain["w"].astype(low))


def test_steps_of_optax_follow_no_policy():
    transformation = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
    outside = transformation.update(W, transformation.init(W), W)
    with unamp.autocast(level="O2", dtype="bfloat16"):
        inside = transformation.update(W, transformation.init(W), W)
        stepped = optax.apply_updates(W, inside[0])
    for a, b in zip(jax.tree.leaves(outside), jax.tree.leaves(inside), strict=True):
        assert np.array_equal(a, b)
    for a, b in zip(
        jax.tree.leaves(stepped), jax.tree.leaves(optax.apply_updates(W, outside[0])), strict=True
    ):
        assert np.array_equal(a, b)
