"""Trainings of 200 steps end within 3 % of float32's loss.

The models are of nnx, linen, equinox and Keras.
"""

from __future__ import annotations

from contextlib import nullcontext

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from unamp_jax import loss_scaling

import unamp
from unamp.vocabulary import vocabulary

STEPS, LAST = 200, 20
DTYPES = ["float16", "bfloat16"]
KEYS = jax.random.split(jax.random.key(7), 6)
X = jax.random.normal(KEYS[0], (128, 8))
Y = jnp.sin(X @ jax.random.normal(KEYS[1], (8, 2))) + jax.random.normal(KEYS[2], (128, 2)) / 2
IMAGES = jax.random.normal(KEYS[3], (16, 6, 6, 1))
WORDS = jax.random.normal(KEYS[4], (128, 4, 8))
LABELS = jax.random.randint(KEYS[5], (16,), 0, 3)


class MLP(nnx.Module):
    def __init__(self):
        self.first, self.last = (
            nnx.Linear(8, 16, rngs=nnx.Rngs(0)),
            nnx.Linear(16, 2, rngs=nnx.Rngs(1)),
        )

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))


class CNN(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.avg_pool(linen.relu(linen.Conv(4, (3, 3))(x)), (2, 2), (2, 2))
        return linen.Dense(3)(x.reshape(x.shape[0], -1))


class Block(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = x + linen.MultiHeadDotProductAttention(2)(linen.LayerNorm()(x))
        h = linen.gelu(linen.Dense(16)(linen.LayerNorm()(x)))
        return linen.Dense(2)(x + linen.Dense(8)(h))[:, 0]


def squared(found, wanted):
    return jnp.mean(optax.squared_error(jnp.float32(found), wanted))


def of_linen(model, x, loss):
    variables = model.init(jax.random.key(0), x)
    return variables, lambda variables: loss(model.apply(variables, x))


def of_equinox():
    model = eqx.nn.MLP(8, 2, 16, 1, key=jax.random.key(0))
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    return parameters, lambda parameters: squared(jax.vmap(eqx.combine(parameters, rest))(X), Y)


def crossed(logits):
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, LABELS))


MODELS = {
    "a linen CNN": lambda: of_linen(CNN(), IMAGES, crossed),
    "a transformer": lambda: of_linen(Block(), WORDS, lambda found: squared(found, Y)),
    "an equinox MLP": of_equinox,
}


def region(dtype):
    return nullcontext() if dtype is None else unamp.autocast(dtype=dtype)


def trained(make, dtype):
    """Return the losses of a training with loss scaling; each step is one compiled program."""
    parameters, loss = make()
    transformation = optax.adam(2e-3)

    @jax.jit
    def step(parameters, opt_state, state):
        def scaled(parameters):
            with region(dtype):
                return loss_scaling.scale(state, loss(parameters))

        value, gradients = jax.value_and_grad(scaled)(parameters)
        gradients, finite = loss_scaling.unscale(state, gradients)
        parameters, opt_state = loss_scaling.step(
            transformation, finite, gradients, opt_state, parameters
        )
        return parameters, opt_state, loss_scaling.adjust(state, finite), value / state.scale

    opt_state, state, losses = (
        transformation.init(parameters),
        loss_scaling.init(growth_interval=50),
        [],
    )
    for _ in range(STEPS):
        parameters, opt_state, state, value = step(parameters, opt_state, state)
        losses.append(value)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(parameters)} == {"float32"}
    return losses


def trained_in_place(dtype):
    """Return the losses of a training with `nnx.Optimizer`.

    The scaler is a Python object outside of `nnx.jit`.
    """
    model, scaler = MLP(), unamp.GradScaler()
    optimizer = nnx.Optimizer(model, optax.adam(2e-3), wrt=nnx.Param)

    @nnx.jit
    def slopes(model, scale):
        def loss(model):
            with region(dtype):
                return squared(model(X), Y) * scale

        return nnx.value_and_grad(loss)(model)

    losses = []
    for _ in range(STEPS):
        scale = scaler.get_scale()
        value, gradients = slopes(model, scale)
        scaler.scale(value)  # tells the scaler that its framework is JAX
        scaler.step(optimizer, model, gradients=gradients)
        scaler.update()
        losses.append(value / scale)
    return losses


def trained_by_keras(dtype):
    import keras

    keras.utils.set_random_seed(0)
    inputs = keras.Input((8,))
    hidden = keras.layers.LayerNormalization()(keras.layers.Dense(16, activation="relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2, dtype="float32")(hidden))
    model.compile(keras.optimizers.Adam(2e-3), "mse")
    with region(dtype):
        return model.fit(
            np.asarray(X), np.asarray(Y), batch_size=128, epochs=STEPS, shuffle=False, verbose=0
        ).history["loss"]


FLOAT32 = {}


def ends_alike(name, run, dtype):
    if name not in FLOAT32:
        FLOAT32[name] = np.asarray(run(None), np.float64)
    wanted, found = FLOAT32[name], np.asarray(run(dtype), np.float64)
    assert wanted[-LAST:].mean() < 0.9 * wanted[0]  # the training learns
    assert not np.array_equal(found, wanted)
    assert found[-LAST:].mean() == pytest.approx(wanted[-LAST:].mean(), rel=0.03)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_training_comes_to_the_loss_of_float32(name, dtype):
    ends_alike(name, lambda dtype: trained(MODELS[name], dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_training_of_nnx_in_place_comes_to_the_loss_of_float32(dtype):
    ends_alike("nnx", trained_in_place, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_training_by_keras_comes_to_the_loss_of_float32(dtype):
    ends_alike("keras", trained_by_keras, dtype)


def test_training_in_one_open_region_is_training_in_one_for_each_step():
    x = jax.random.normal(jax.random.key(0), (32, 4))
    y = x @ jnp.asarray([[1.0], [-2.0], [0.5], [3.0]])

    def run(around, inside, compiled):
        model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)

        def step(model, optimizer):
            def loss(model):
                with inside():
                    return jnp.mean((jnp.float32(model(x)) - y) ** 2)

            value, gradients = nnx.value_and_grad(loss)(model)
            optimizer.update(model, gradients)
            return value

        stepping = nnx.jit(step) if compiled else step
        with around():
            return [float(stepping(model, optimizer)) for _ in range(60)]

    region = lambda: unamp.autocast(dtype="bfloat16")  # noqa: E731
    for compiled in (False, True):
        open_throughout, one_a_step = (
            run(region, nullcontext, compiled),
            run(nullcontext, region, compiled),
        )
        plain = run(nullcontext, nullcontext, compiled)
        assert open_throughout == one_a_step
        assert plain != one_a_step
        assert open_throughout[-1] < open_throughout[0] / 20


def test_more_policies_than_are_remembered_trace_once_each():
    traced = []

    @jax.jit
    def f(a):
        traced.append(a)
        return a @ a

    listed = sorted(op.name for op in vocabulary().values() if not op.is_cast)
    policies = [unamp.Policy(dtype="bfloat16", deny=[op]) for op in listed[:300]]
    for policy in policies:
        with unamp.policy_region(policy):
            jax.eval_shape(f, jnp.ones((2, 2)))
    seen = len(traced)
    for policy in policies:
        with unamp.policy_region(policy):
            jax.eval_shape(f, jnp.ones((2, 2)))
    assert seen == len(policies)
    assert len(traced) == seen


def test_what_has_its_parameters_elsewhere_is_told_what_to_use():
    dense = linen.Dense(4)
    with pytest.raises(unamp.NotExpressible, match="unamp_jax.low_parameters"):
        unamp.decorate(dense, optax.adam(1e-2), level="O2", dtype="bfloat16")
    with pytest.raises(unamp.NotExpressible, match="unamp_jax.with_master_weights"):
        unamp.decorate(
            nnx.Linear(2, 2, rngs=nnx.Rngs(0)), optax.adam(1e-2), level="O2", dtype="bfloat16"
        )
    with pytest.raises(TypeError, match="has no argument 'scale'; it takes init_scale"):
        loss_scaling.init(scale=4.0)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_parameters_in_a_vector_stay_float32(level, compiled):
    parameters = {"w": jnp.asarray([0.1, 0.2]), "b": jnp.asarray(0.3)}

    def there_and_back(tree):
        vector, back = jax.flatten_util.ravel_pytree(tree)
        return vector, back(vector)

    run = jax.jit(there_and_back) if compiled else there_and_back
    with unamp.autocast(level=level, dtype="bfloat16"):
        vector, found = run(parameters)
    assert vector.dtype == jnp.float32
    jax.tree.map(np.testing.assert_array_equal, found, parameters)
