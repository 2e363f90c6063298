"""Optimizers, running statistics, metrics and scalers keep float32's numbers in a region."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unamp

equinox = pytest.importorskip("equinox")
haiku = pytest.importorskip("haiku")
optax = pytest.importorskip("optax")
linen = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")
train_state = pytest.importorskip("flax.training.train_state")
dynamic_scale = pytest.importorskip("flax.training.dynamic_scale")

X = jax.random.normal(jax.random.key(0), (4, 8))


def low(level="O2", dtype="bfloat16"):
    return unamp.autocast(level=level, dtype=dtype)


def same(a, b):
    return jax.tree.all(
        jax.tree.map(
            lambda one, other: one.dtype == other.dtype and bool((one == other).all()), a, b
        )
    )


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_equinox_adds_updates_to_float32_parameters(level):
    layer = equinox.nn.Linear(8, 8, key=jax.random.key(1))
    updates = jax.tree.map(lambda leaf: leaf * 1e-3, equinox.filter(layer, equinox.is_array))
    wanted = equinox.apply_updates(layer, updates)
    with low(level):
        stepped = equinox.apply_updates(layer, updates)
    assert same(equinox.filter(stepped, equinox.is_array), equinox.filter(wanted, equinox.is_array))


def test_gradients_are_added_up_in_float32():
    gradients, parameters = {"w": jnp.full(3, 0.123456)}, {"w": jnp.ones(3)}
    transformation = optax.MultiSteps(optax.sgd(0.1), 2)

    def run():
        state, parameters_now = transformation.init(parameters), parameters
        for _ in range(3):
            updates, state = transformation.update(gradients, state, parameters_now)
            parameters_now = optax.apply_updates(parameters_now, updates)
        return parameters_now, state.acc_grads

    wanted = run()
    with low("O3"):
        assert same(run(), wanted)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_the_mean_of_gradients_over_replicas_is_float32(level):
    gradients = jnp.linspace(1e-9, 1e-8, 4)
    mean = jax.pmap(lambda g: jax.lax.pmean({"w": g}, "i"), axis_name="i")
    wanted = mean(gradients)
    with low(level, "float16"):
        assert same(mean(gradients), wanted)


@pytest.mark.parametrize("through", ["optax", "several", "equinox", "nnx", "linen"])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_that_a_program_averages_make_float32_steps(through, compiled):
    weights = jax.random.normal(jax.random.key(2), (8, 8))
    transformation = optax.adam(1e-2)

    def gradient(loss, w):
        return jax.tree.map(lambda a, b: (a + b) / 2, *(jax.grad(loss)(w) for _ in range(2)))

    def linen_step(w):
        state = train_state.TrainState.create(apply_fn=None, params={"w": w}, tx=transformation)
        found = gradient(lambda given: jnp.mean(jnp.tanh(X @ given["w"])) ** 2, state.params)
        return state.apply_gradients(grads=found).params["w"]

    def nnx_step(w):
        layer = nnx.Linear(8, 8, use_bias=False, rngs=nnx.Rngs(0))
        layer.kernel[...] = w
        optimizer = nnx.Optimizer(layer, transformation, wrt=nnx.Param)
        found = nnx.grad(lambda layer: jnp.mean(jnp.tanh(layer(X))) ** 2)(layer)
        optimizer.update(layer, jax.tree.map(lambda leaf: leaf / 2, found))
        return layer.kernel[...]

    def optax_step(w):
        found = gradient(lambda w: jnp.mean(jnp.tanh(X @ w)) ** 2, w)
        updates, _ = transformation.update(found, transformation.init(w), params=w)
        return optax.apply_updates(w, updates)

    def several_step(w):
        several = optax.MultiSteps(transformation, 2)
        state = several.init(w)
        for _ in range(2):
            found = gradient(lambda w: jnp.mean(jnp.tanh(X @ w)) ** 2, w)
            updates, state = several.update(found, state, w)
        return optax.apply_updates(w, updates)

    def equinox_step(w):
        layer = equinox.nn.MLP(8, 8, 8, 1, use_bias=False, key=jax.random.key(1))
        layer = equinox.tree_at(lambda layer: layer.layers[0].weight, layer, w)
        found = equinox.filter_grad(lambda layer: jnp.mean(jax.vmap(layer)(X)) ** 2)(layer)
        found = jax.tree.map(lambda leaf: leaf / 2, found)
        state = transformation.init(equinox.filter(layer, equinox.is_array))
        updates, _ = transformation.update(found, state, layer)
        return equinox.apply_updates(layer, updates).layers[0].weight

    step = {
        "optax": optax_step, "several": several_step, "equinox": equinox_step, "nnx": nnx_step,
        "linen": linen_step,
    }[through]  # fmt: skip
    step = jax.jit(step) if compiled else step
    with low("O2", "float16"):
        stepped = step(weights)
    assert stepped.dtype == jnp.float32
    assert np.abs(stepped - weights).max() < 0.011  # a square of zero leaves a step unbounded


def test_a_step_of_low_parameters_takes_their_gradients_as_they_are():
    parameters = {"w": jnp.ones(3, jnp.float16)}
    given = []
    transformation = optax.GradientTransformation(
        lambda parameters: (),
        lambda gradients, state, parameters=None: (given.append(gradients) or gradients, state),
    )
    with low("O2", "float16"):
        transformation.update(parameters, (), parameters)
        transformation.update({"w": jnp.ones(3)}, (), parameters)
        transformation.update(parameters, ())
    assert [str(each["w"].dtype) for each in given] == ["float16", "float32", "float16"]


@pytest.mark.parametrize("through", ["optax", "nnx", "loss_scaling", "masters"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_line_search_asks_for_the_loss_under_the_policy(through, compiled):
    from unamp_jax import loss_scaling, with_master_weights

    weights, searched = jax.random.normal(jax.random.key(2), (8, 8)), []

    def loss(w):
        y = jnp.tanh(X @ (w.w[...] if through == "nnx" else w))
        if searching:
            searched.append(str(y.dtype))
        return jnp.mean((y - 0.5) ** 2)

    class Network(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(weights)

    transformation = optax.lbfgs()
    if through == "masters":
        transformation = with_master_weights(transformation)
    searching = False

    def step(w):
        nonlocal searching
        value, gradient = jax.value_and_grad(loss)(w)
        extra = {"value": value, "grad": gradient, "value_fn": loss}
        searching = True
        state = transformation.init(w)
        if through == "loss_scaling":
            return loss_scaling.step(transformation, jnp.array(True), gradient, state, w, **extra)[
                0
            ]
        updates, _ = transformation.update(gradient, state, w, **extra)
        return optax.apply_updates(w, updates)

    with low("O1"):
        if through == "nnx":
            network = Network()
            optimizer = nnx.Optimizer(network, optax.lbfgs(), wrt=nnx.Param)
            value, gradient = nnx.value_and_grad(loss)(network)
            split = nnx.split(network)
            searching = True
            optimizer.update(
                network, gradient, value=value, grad=nnx.state(gradient, nnx.Param),
                value_fn=lambda state: loss(nnx.merge(split[0], state)),
            )  # fmt: skip
            stepped = network.w[...]
        else:
            stepped = (jax.jit(step) if compiled else step)(weights)
    assert set(searched) == {"bfloat16"}
    assert stepped.dtype == jnp.float32
    assert float(jnp.abs(stepped - weights).max()) > 0


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_jax_minimizes_outside_of_regions_and_the_function_follows_the_policy(level, compiled):
    from jax.scipy.optimize import minimize

    searched = []

    def distance(x, target):
        # a product with 1 rounds, and a gradient of whole numbers is exact in bfloat16
        y = (x[None] @ jnp.eye(4))[0]
        searched.append(str(y.dtype))
        return jnp.sum((y - target) ** 2)

    def found(start):
        return minimize(distance, start, (jnp.array([1.0, 2.0, -3.0, 4.0]),), method="BFGS")

    with low(level):
        result = (jax.jit(found) if compiled else found)(jnp.zeros(4))
    assert set(searched) == {"bfloat16"}
    assert (result.x.dtype, result.fun.dtype, result.hess_inv.dtype) == (jnp.float32,) * 3
    np.testing.assert_allclose(result.x, [1, 2, -3, 4], atol=4 * 2**-8)


def test_a_function_that_no_rule_changes_is_minimized_as_outside_of_regions():
    from jax.scipy.optimize import minimize

    def found():
        target = jnp.array([1.0, 2.0, -3.0, 4.0])
        return minimize(lambda x: jnp.sum((x - target) ** 4), jnp.ones(4), method="BFGS")

    with low("O1"):
        inside = found()
    assert same(inside, found())


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("name", ["cg", "gmres", "bicgstab"])
@pytest.mark.parametrize("size", [1e-4, 1e3])
def test_jax_solves_outside_of_regions_and_the_matrix_follows_the_policy(name, level, size):
    import jax.scipy.sparse.linalg as solvers

    asked = []
    matrix = 4 * jnp.eye(8) + jnp.eye(8, k=1) + jnp.eye(8, k=-1)  # its eigenvalues are 2 to 6

    def product(vector):
        result = matrix @ vector
        asked.append(str(result.dtype))
        return result

    def solved(b):
        return getattr(solvers, name)(product, b, tol=2**-7)[0]

    right = size * jnp.arange(1.0, 9.0)
    expected = jnp.linalg.solve(matrix, right)
    with low(level):
        solution = solved(right)
        # the matrix is symmetric, so that this is the solution once more
        gradient = jax.grad(lambda b: (solved(b) * right).sum())(right)
    assert set(asked) == {"bfloat16"}
    assert (solution.dtype, gradient.dtype) == (jnp.float32,) * 2
    with unamp.autocast(level=level, dtype="float16"):
        half = solved(right)
    # An error is at most half of the residual, and the right side 6 times the solution. The
    # residual is within the tolerance, and off by the rounding of the right side, and of vectors
    # and results of products, which fall from step to step: altogether twice the first ones.
    bound = 3 * (2**-7 + 5 * 2**-9) * float(jnp.linalg.norm(expected))
    for found in (solution, gradient, half):
        assert float(jnp.linalg.norm(found - expected)) <= bound


@pytest.mark.parametrize("order", [1, 2, 5])
def test_an_exponential_integral_of_any_order_is_finite_in_float16(order):
    from jax.scipy.special import expn

    x = jnp.linspace(0.25, 4.0, 8)
    with unamp.autocast(level="O2", dtype="float16"):
        found = expn(order, x)
    assert found.dtype == jnp.float16
    # the argument and the result are rounded; the logarithm's slope is less than 4 here
    np.testing.assert_allclose(np.float32(found), expn(order, x), rtol=(1 + 4 * 4) * 2**-11)


def network(x):
    x = haiku.Linear(8)(x)
    x = haiku.BatchNorm(True, True, 0.9)(haiku.Linear(8)(x), True)
    return haiku.ExponentialMovingAverage(0.999)(x)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("compile_", [lambda function: function, jax.jit])
def test_haiku_makes_the_parameters_and_the_state_of_a_network_outside_of_regions(level, compile_):
    made = haiku.transform_with_state(network)
    wanted = compile_(made.init)(jax.random.key(0), X)
    with low(level):
        assert same(compile_(made.init)(jax.random.key(0), X), wanted)


def test_running_averages_of_haiku_move():
    made = haiku.transform_with_state(lambda x: haiku.ExponentialMovingAverage(0.999)(x))
    _, state = made.init(None, X)

    def run(state):
        for _ in range(20):
            _, state = made.apply({}, state, None, X)
        return state

    wanted = run(state)
    with low("O2"):
        assert same(run(state), wanted)


def test_state_of_haiku_keeps_its_dtype():
    def count(x):
        total = haiku.get_state("total", x.shape, init=jnp.zeros)
        haiku.set_state("total", total + x)
        haiku.set_state("new", x * x)
        return x @ x.T

    made = haiku.transform_with_state(count)
    _, state = made.init(None, X)
    with low("O2"):
        _, after = made.apply({}, state, None, X)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(after)} == {"float32"}


def test_variables_of_linen_keep_their_dtype():
    class Layer(linen.Module):
        @linen.compact
        def __call__(self, x):
            mean = self.variable("stats", "mean", lambda: jnp.zeros(8))
            y = linen.Dense(8)(x)
            mean.value = 0.9 * mean.value + 0.1 * y.mean(0)
            self.sow("seen", "y", y)
            return y

    layer = Layer()
    variables = layer.init(jax.random.key(0), X)
    with low("O2"):
        y, after = layer.apply(variables, X, mutable=["stats", "seen"])
    assert y.dtype == jnp.bfloat16
    assert after["seen"]["y"][-1].dtype == jnp.bfloat16
    assert after["stats"]["mean"].dtype == jnp.float32
    assert float(jnp.abs(after["stats"]["mean"]).max()) > 0


@pytest.mark.parametrize(("level", "dtype"), [("O2", "bfloat16"), ("O3", "float16")])
def test_metrics_of_nnx_count(level, dtype):
    def run():
        metrics = nnx.MultiMetric(
            accuracy=nnx.metrics.Accuracy(),
            loss=nnx.metrics.Average("loss"),
            spread=nnx.metrics.Welford("loss"),
        )
        for n in range(300):
            loss = jnp.full(8, 1.0 + 0.125 * (n % 2), dtype)  # both dtypes have these numbers
            metrics.update(logits=jnp.eye(8), labels=jnp.arange(8), loss=loss)
        return metrics.compute()

    wanted = run()
    with low(level, dtype):
        found = run()
    assert float(found["accuracy"]) == 1.0
    np.testing.assert_allclose(float(found["loss"]), 1.0625, rtol=1e-6)
    np.testing.assert_allclose(float(found["spread"].mean), 1.0625, rtol=1e-5)
    np.testing.assert_allclose(float(found["spread"].standard_deviation), 0.0625, rtol=1e-3)
    assert {str(leaf.dtype) for leaf in (found["accuracy"], found["loss"])} == {"float32"}
    assert float(wanted["accuracy"]) == 1.0


@pytest.mark.skipif(not hasattr(nnx, "EMA"), reason="this flax has no averages of parameters")
def test_averages_of_parameters_move():
    layer = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

    def made():
        averages = nnx.EMA(layer, decay=0.999)
        averages.params.kernel[...] = averages.params.kernel[...] * 1.01
        return averages

    def run(averages):
        for _ in range(5):
            averages.update(layer)
        return averages.params.kernel[...]

    wanted, averages = run(made()), made()
    with low("O2"):
        assert same(run(averages), wanted)


def test_dynamic_scale_of_flax_scales_in_float32():
    parameters = {"w": jnp.full((8, 8), 1.25e-4)}

    def loss(parameters):
        return jnp.mean(jnp.float32(X @ parameters["w"])) * 2e-3

    def run(scale):
        for _ in range(2):
            scale, finite, value, gradients = scale.value_and_grad(loss)(parameters)
        return scale.scale, finite, value, gradients["w"]

    wanted = run(dynamic_scale.DynamicScale())
    with low("O2", "float16"):
        scale, finite, value, gradients = run(dynamic_scale.DynamicScale())
    assert bool(finite)
    assert scale.dtype == value.dtype == gradients.dtype == jnp.float32
    np.testing.assert_allclose(gradients, wanted[3], rtol=5e-3)


def test_dynamic_scale_has_its_function_follow_the_policy():
    seen = []

    def loss(w):
        y = X @ w
        seen.append(str(y.dtype))
        return jnp.float32(y).sum()

    with low("O1"):
        dynamic_scale.DynamicScale().value_and_grad(loss)(jnp.eye(8))
    assert set(seen) == {"bfloat16"}


GRADIENTS = {"w": jnp.full(1000, 1e4), "b": jnp.array([1e-3, 2e-3])}


def evaluated(parameters):
    transformation = optax.contrib.schedule_free_sgd(1e-2)
    state = transformation.init(parameters)
    updates, state = transformation.update(parameters, state, parameters)
    return optax.contrib.schedule_free_eval_params(state, optax.apply_updates(parameters, updates))


@pytest.mark.parametrize(
    "compute",
    [
        optax.tree.norm,
        optax.global_norm,
        lambda gradients: optax.per_example_global_norm_clip([gradients["w"].reshape(4, 250)], 1.0)[
            0
        ],
        lambda gradients: optax.projections.projection_l2_ball(gradients, 1.0),
        evaluated,
        lambda gradients: jnp.array(list(gradients["b"]), dtype=jnp.float32),
    ],
    ids=["norm", "global_norm", "clipped", "projected", "evaluated", "array"],
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_what_optax_does_to_gradients_and_parameters_in_a_region_comes_to_the_same_bits_as_outside(
    compute, compiled
):
    # A norm in float16 would be infinite.
    call = jax.jit(compute) if compiled else compute
    known = call(GRADIENTS)
    with unamp.autocast(level="O2", dtype="float16"):
        found = call(GRADIENTS)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(known), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def test_variables_of_nnx_keep_their_dtype():
    class Counting(nnx.Module):
        def __init__(self):
            self.mean = nnx.BatchStat(jnp.zeros(3))

        def __call__(self, x):
            self.mean.set_value(0.5 * self.mean.get_value() + 0.5 * x.mean(0))
            self.mean[0] = x[0, 0] * 2
            return x

    for compile_ in (lambda function: function, nnx.jit):
        module = Counting()
        with unamp.autocast(level="O2", dtype="bfloat16"):
            compile_(lambda module, x: module(x))(module, jnp.ones((4, 3)))
        assert module.mean.get_value().dtype == jnp.float32
        np.testing.assert_array_equal(module.mean.get_value(), jnp.array([2.0, 0.5, 0.5]))
