"""Gradients have the dtypes of their forward pass, whatever region is open around them."""

from contextlib import nullcontext

import mindspore
import numpy as np
import pytest
from eager import under
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common._grad_function import _Function
from unamp_mindspore.casting import cast, rounded
from unamp_mindspore.state import thread

from unamp import Policy, custom_bwd, custom_fwd, policy_region

F32 = mindspore.float32


def rand(*shape):
    return Tensor(np.random.uniform(-1, 1, shape).astype(np.float32))


def network():
    mindspore.set_seed(1)
    return nn.SequentialCell(
        nn.Dense(6, 8), nn.ReLU(), nn.LayerNorm((8,)), nn.Dense(8, 3), nn.Tanh()
    )


def arrays(gradients):
    return [g.asnumpy() for g in gradients]


def test_the_gradient_of_a_product_is_rounded_as_its_forward(low):
    a, b, weight = rand(4, 5), rand(5, 3), rand(4, 3)

    def loss(a, b):
        with under(low=low):
            y = ops.matmul(a, b)
        return (y.astype(F32) * weight).sum()

    found, _ = mindspore.grad(loss, (0, 1))(a, b)
    rounded = (
        ops.matmul(weight.astype(low).astype(F32), b.astype(low).astype(F32).T)
        .astype(low)
        .astype(F32)
    )
    np.testing.assert_array_equal(found.asnumpy(), rounded.asnumpy())


def test_a_cast_without_gradients_is_not_used_with_them(low):
    net, x = network(), rand(4, 6)
    with under(low=low):
        net(x)
        gradients = mindspore.grad(
            lambda x: net(x).astype(F32).sum(), None, net.trainable_params()
        )(x)
        again = mindspore.grad(lambda x: net(x).astype(F32).sum(), None, net.trainable_params())(x)
    for a, b in zip(arrays(gradients), arrays(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.abs(arrays(gradients)[0]).max() > 0


def test_second_derivatives(low):
    x = Tensor([[0.3, -0.7], [0.2, 0.9]], F32)

    def loss(x):
        with under(low=low):
            return ops.matmul(x, x).astype(F32).sum()

    first = mindspore.grad(loss)
    second = mindspore.grad(lambda x: (first(x) * first(x)).sum())(x)
    assert second.dtype == F32
    assert np.isfinite(second.asnumpy()).all()


def vector_of_ones(*shape):
    return Tensor(np.ones(shape, np.float32))


@pytest.mark.parametrize("inside", [True, False])
def test_a_vector_in_float32_fits_a_low_result(low, inside):
    net, x, vector = network(), rand(4, 6), vector_of_ones(4, 3)
    run = under(low=low)(net) if inside else net
    with nullcontext() if inside else under(low=low):
        result, product = mindspore.vjp(run, x)
        by_grad = mindspore.grad(lambda x: run(x).astype(F32).sum())(x)
        by_operation = ops.GradOperation(sens_param=True)(run)(x, vector)
        by_keyword = ops.GradOperation(sens_param=True)(run)(x, sens=vector)
    by_product = product(vector)
    assert result.dtype == low
    for found in (by_operation, by_keyword, *by_product):
        np.testing.assert_array_equal(found.asnumpy(), by_grad.asnumpy())


def test_vectors_in_float32_fit_the_low_results_among_several(low):
    a, b = rand(4, 4), rand(4, 4)

    def several(a, b):
        return ops.matmul(a, b), ops.exp(a), ops.argmax(b)

    with under(low=low):
        results, product = mindspore.vjp(lambda a, b: several(a, b)[:2], a, b)
        found = product(vector_of_ones(4, 4), vector_of_ones(4, 4))
        expected = mindspore.grad(lambda a, b: sum(y.astype(F32).sum() for y in several(a, b)[:2]))(
            a, b
        )
        _, product, rest = mindspore.vjp(several, a, b, has_aux=True)
        assert product(vector_of_ones(4, 4))[1].dtype == F32
    assert [each.dtype for each in results] == [low, F32]
    assert rest[0].dtype == F32
    np.testing.assert_allclose(found[0].asnumpy(), expected.asnumpy(), rtol=1e-2)


def test_a_vector_of_another_dtype_is_refused_without_a_region(low):
    x, vector = rand(4, 4).astype(mindspore.float16), vector_of_ones(4, 4)
    with under(low=low):
        mindspore.grad(lambda x: ops.matmul(x, x).astype(F32).sum())(rand(4, 4))
    _, product = mindspore.vjp(ops.exp, x)
    with pytest.raises(TypeError):
        product(vector)


def test_a_product_of_a_vector_in_a_graph():
    @mindspore.jit
    def product_of(x, vector):
        result, product = mindspore.vjp(ops.exp, x)
        return result, product(vector)

    x, vector = rand(4, 4), vector_of_ones(4, 4)
    for region in (nullcontext(), under()):
        with region:
            result, found = product_of(x, vector)
        np.testing.assert_array_equal(result.asnumpy(), found[0].asnumpy())


GRADIENT = ops.GradOperation(sens_param=True)
OF_WEIGHTS = ops.GradOperation(get_by_list=True, sens_param=True)
WEIGHT, OTHER = Parameter(rand(4, 4), name="weight"), rand(3, 4)
WEIGHTS = mindspore.ParameterTuple([WEIGHT])


def product(x, y):
    return ops.matmul(x * y, WEIGHT)


def several(x):
    return product(x, OTHER), ops.exp(x)


def by_operation(x, vector):
    return GRADIENT(product)(x, OTHER, vector)


def by_keyword(x, vector):
    return GRADIENT(product)(x, y=OTHER, sens=vector)


def by_operation_made_inside(x, vector):
    return ops.GradOperation(get_all=True, sens_param=True)(product)(x, OTHER, vector)[0]


def of_weights(x, vector):
    return OF_WEIGHTS(product, WEIGHTS)(x, OTHER, vector)[0]


def of_several(x, vector):
    return GRADIENT(several)(x, (vector, vector))


def by_vjp(x, vector):
    _, product_of, rest = mindspore.vjp(several, x, has_aux=True)
    return product_of(vector)[0] + 0 * rest


def by_jvp(x, vector):
    return mindspore.jvp(several, x, vector)[1][0]


VECTORS = {
    each.__name__: each
    for each in (
        by_operation, by_keyword, by_operation_made_inside, of_weights, of_several, by_vjp, by_jvp,
    )
}  # fmt: skip


@pytest.mark.parametrize("compute", VECTORS.values(), ids=VECTORS)
def test_a_vector_in_float32_fits_a_low_result_in_a_graph(low, compute):
    x, vector = rand(3, 4), rand(3, 4)
    with under(low=low):
        expected, found = compute(x, vector), mindspore.jit(compute)(x, vector)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(*(each.astype(F32).asnumpy() for each in (found, expected)))
    assert (found != mindspore.jit(compute)(x, vector)).any()


def there_and_back(x, low):
    """Return a tensor rounded to low and widened by MindSpore's own operations."""
    return ops.Cast()(ops.Cast()(x, low), F32)


@pytest.fixture(params=[False, True], ids=["asynchronous", "synchronous"])
def synchronous(request):
    """Have each call wait for its result, or not: casts with a gradient then run different code."""
    before = mindspore.get_context("pynative_synchronize")
    mindspore.set_context(pynative_synchronize=request.param)
    yield
    mindspore.set_context(pynative_synchronize=before)


both_ways = pytest.mark.usefixtures("synchronous")
ROUNDINGS = {"rounded": rounded, "cast": lambda x, low: cast(cast(x, low), F32)}


@both_ways
@pytest.mark.parametrize("rounding", ROUNDINGS.values(), ids=ROUNDINGS)
def test_a_cast_is_the_operation_cast(low, rounding):
    numbers = np.random.default_rng(1).integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    edges = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        65504,
        65519,
        65520,
        6e-8,
        2.98e-8,
        2.99e-8,
        3.39e38,
        3.4e38,
        1 + 2**-9,
    ]
    x, weight = Tensor(np.concatenate([numbers, np.float32(edges)])), rand(200_000 + len(edges))
    for found, expected in (
        (rounding(x, low), there_and_back(x, low)),
        [
            mindspore.grad(lambda x, to=to: to(x, low) * weight)(x)
            for to in (rounding, there_and_back)
        ],
    ):
        np.testing.assert_array_equal(found.asnumpy(), expected.asnumpy())
        assert found.dtype == F32


@both_ways
@pytest.mark.parametrize("rounding", ROUNDINGS.values(), ids=ROUNDINGS)
def test_second_derivatives_go_through_a_cast(low, rounding):
    x, weight = rand(5, 6), rand(5, 6)

    def second(to):
        first = mindspore.grad(lambda x: (to(x, low) ** 3).sum())
        return mindspore.grad(lambda x: (first(x) * weight).sum())(x).asnumpy()

    np.testing.assert_array_equal(second(rounding), second(there_and_back))
    assert np.abs(second(rounding)).max() > 0


VIEWS = {
    "permuted": lambda x: mint.permute(x, (2, 0, 1)),
    "narrow": lambda x: mint.narrow(x, 2, 3, 4),
    "broadcast": lambda x: mint.broadcast_to(x[:1], (6, 8, 10)),
}
#: MindSpore's own gradient of these fails at times.
SLICES = {
    "strided": lambda x: x[1:5:2, ::3, 2:7],
    "empty": lambda x: x[:0],
    "scalar": lambda x: x[0, 0, 0],
}


@pytest.mark.parametrize("view", [*VIEWS.values(), *SLICES.values()], ids=[*VIEWS, *SLICES])
@pytest.mark.parametrize("rounding", ROUNDINGS.values(), ids=ROUNDINGS)
def test_a_cast_of_a_view(low, view, rounding):
    x = rand(6, 8, 10)
    np.testing.assert_array_equal(
        rounding(view(x), low).asnumpy(), there_and_back(view(x), low).asnumpy()
    )


@both_ways
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("rounding", ROUNDINGS.values(), ids=ROUNDINGS)
def test_the_gradient_of_a_cast_of_a_view(low, view, rounding):
    x, weight = rand(6, 8, 10), rand(*view(rand(6, 8, 10)).shape)
    found, expected = (
        mindspore.grad(lambda x, to=to: (to(view(x), low) * weight).sum())(x)
        for to in (rounding, there_and_back)
    )
    np.testing.assert_array_equal(found.asnumpy(), expected.asnumpy())


@both_ways
def test_a_parameters_gradient_is_in_the_dtype_that_it_has(low):
    weight = Parameter(rand(3, 4), name="weight")
    weight.set_dtype(low)
    (found,) = mindspore.grad(lambda x: (cast(weight, F32) * x).sum(), None, [weight])(rand(3, 4))
    assert found.dtype == low


def test_batch_norm_in_training(low):
    net, x = nn.SequentialCell(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), rand(2, 3, 6, 6)
    net.set_train()
    before = net[1].moving_mean.asnumpy().copy()

    def loss(x):
        with under(low=low):
            return net(x).astype(F32).square().sum()

    gradients = mindspore.grad(loss, None, net.trainable_params())(x)
    assert {g.dtype for g in gradients} == {F32}
    assert {p.dtype for p in net.get_parameters()} == {F32}
    assert np.abs(net[1].moving_mean.asnumpy() - before).max() > 0


class Cubed(nn.Cell):
    """A cell that computes its own gradient."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def construct(self, x):
        return x * x * x

    def bprop(self, x, out, dout):
        self.seen.append((x.dtype, dout.dtype))
        return (dout * x * x * 3,)


def test_a_cells_own_gradient_computes_with_low_tensors(low):
    cell, x = Cubed(), rand(3, 3)

    def loss(x):
        return cell(ops.matmul(x, x)).astype(F32).sum()

    with under(low=low):
        found = mindspore.grad(loss)(x)
    assert cell.seen == [(low, low)]
    assert found.dtype == F32
    np.testing.assert_allclose(
        found.asnumpy(), mindspore.grad(loss)(x).asnumpy(), rtol=0.1, atol=0.05
    )


class CubedInFloat32(Cubed):
    @custom_fwd(cast_inputs="float32")
    def construct(self, x):
        return super().construct(x)


def test_the_inputs_that_custom_fwd_casts_reach_the_backward_pass_as_well(low):
    cell, x = CubedInFloat32(), rand(3, 3)

    def loss(x):
        product = ops.matmul(x, x)
        return cell(product).sum() + product.astype(F32).sum()

    with under(low=low):
        found = mindspore.grad(loss)(x)
    assert cell.seen == [(F32, F32)]
    assert found.dtype == F32
    np.testing.assert_allclose(
        found.asnumpy(), mindspore.grad(loss)(x).asnumpy(), rtol=0.1, atol=0.05
    )
    with policy_region(Policy(enabled=False)):
        mindspore.grad(lambda x: cell(x).astype(F32).sum())(x.astype(mindspore.float16))
    assert cell.seen[-1][0] == mindspore.float16  # without a policy nothing is cast


@pytest.mark.parametrize(
    "how",
    [{}, {"use_reentrant": False}, {"output_recompute": True}],
    ids=["reentrant", "hooks", "output"],
)
def test_a_cell_that_is_to_be_recomputed(low, how):
    net, x = network(), rand(4, 6)

    def gradients(**policy):
        def loss(x):
            with under(low=low, **policy):
                return net(x).astype(F32).sum()

        return arrays(mindspore.grad(loss, None, net.trainable_params())(x))

    policies = ({}, {"enabled": False}, {"deny": "linear"}, {})
    expected = [gradients(**policy) for policy in policies]
    net.recompute(**how)
    for policy, exact in zip(policies, expected, strict=True):
        for one, other in zip(gradients(**policy), exact, strict=True):
            np.testing.assert_array_equal(one, other)


class Power(_Function):
    """A square with a gradient of its own; the CPU has no low kernels for its operations."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return ops.mul(x, x)

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * ops.exp(ops.log(gradient))


class PowerCell(nn.Cell):
    def construct(self, x):
        return ops.mul(x, x)

    def bprop(self, x, out, gradient):
        return (2 * x * ops.exp(ops.log(gradient)),)


def hooked(x):
    x = ops.mul(x, x)
    x.register_hook(lambda gradient: ops.exp(ops.log(gradient)))
    return x


@pytest.mark.parametrize(
    "function", [Power.apply, PowerCell(), hooked], ids=["function", "bprop", "hook"]
)
def test_what_a_backward_pass_calls_after_its_region_computes_with_low_gradients(low, function):
    x, w = ops.abs(rand(4, 6)) + 1, ops.abs(rand(6, 3)) + 1

    def plain(x):
        return function(ops.matmul(x, w)).astype(F32).sum()

    def inside(x):
        with under(low=low):
            return plain(x)

    exact = mindspore.grad(plain)(x)
    found = mindspore.grad(inside)(x)
    assert found.dtype == F32
    np.testing.assert_allclose(found.asnumpy(), exact.asnumpy(), rtol=0.03)
    assert not thread.recorded


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: ops.assign(weight, weight * 2),
        lambda weight: ops.assign_add(weight, weight.value()),
        lambda weight: ops.AssignSub()(weight, -weight.value()),
        lambda weight: weight.set_data(weight * 2),
        lambda weight: weight.__setitem__(slice(None), weight.value() * 2),
        lambda weight: weight.assign_value(Tensor(weight.asnumpy() * 2)),
    ],
    ids=["assign", "assign_add", "AssignSub", "set_data", "index", "assign_value"],
)
@pytest.mark.parametrize("trained", [True, False])
def test_a_parameter_that_is_given_other_values_is_cast_again(low, change, trained):
    x, weight = rand(4, 6), Parameter(rand(6, 3), name="weight", requires_grad=trained)
    found = []

    def loss(x):
        with under(low=low):
            found.append(ops.matmul(x, weight))
            change(weight)
            found.append(ops.matmul(x, weight))
        return sum(each.astype(F32).sum() for each in found)

    mindspore.value_and_grad(loss)(x)
    before, after = arrays(each.astype(F32) for each in found)
    np.testing.assert_array_equal(after, before * 2)


class Product(nn.Cell):
    """A cell with a product in its own gradient.

    No policy reaches that gradient: the product has the dtype to which the cell casts.
    """

    def construct(self, x, w):
        return ops.matmul(x, w)

    def bprop(self, x, w, out, dout):
        x, w = x.astype(dout.dtype), w.astype(dout.dtype)
        return ops.matmul(dout, w.T), ops.matmul(x.T, dout)


class ProductInFloat32(nn.Cell):
    def __init__(self):
        super().__init__()
        self.product, self.back = ops.MatMul(), ops.MatMul(transpose_b=True)

    def construct(self, x, w):
        return self.product(x, w)

    def bprop(self, x, w, out, dout):
        wide = ops.cast(dout, F32)
        return self.back(wide, w), self.product(ops.transpose(x, (1, 0)), wide)


class ProductAsForward(nn.Cell):
    """A cell whose backward pass multiplies under the policy.

    Of a float32 and a low input, both become low.
    """

    @custom_fwd
    def construct(self, x, w):
        return ops.matmul(x, w)

    @custom_bwd
    def bprop(self, x, w, out, dout):
        return ops.matmul(dout, w.T), ops.matmul(x.T, dout)


class Around(nn.Cell):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def construct(self, x, w):
        return self.inner(ops.tanh(x), w)


@pytest.mark.parametrize("kind", [Product, ProductInFloat32, ProductAsForward])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a network"])
def test_a_cells_own_gradient_with_a_product_is_the_same_in_a_graph(low, kind, inside):
    cell = Around(kind()) if inside else kind()
    x, w = rand(3, 4), rand(4, 5)

    def gradients(x, w):
        return mindspore.grad(loss, (0, 1))(x, w)

    def loss(x, w):
        return cell(x, w).astype(F32).square().sum()

    compiled = mindspore.jit(gradients)
    with under(low=low):
        eager, found = gradients(x, w), compiled(x, w)
    assert [each.dtype for each in found] == [each.dtype for each in eager] == [F32, F32]
    for one, other in zip(arrays(found), arrays(eager), strict=True):
        np.testing.assert_array_equal(one, other)
    if kind is Product:
        assert (arrays(gradients(x, w))[0] != arrays(found)[0]).any()


class Mixing(nn.Cell):
    """A cell whose gradient is two products of a low gradient and a float32 input.

    The float32 inputs are those of the call.
    """

    def construct(self, x, w):
        return ops.tanh(ops.matmul(x, w))

    def bprop(self, x, w, out, dout):
        gradient = dout * (1 - out * out)
        return ops.matmul(gradient, w.T), ops.matmul(x.T, gradient)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("closed", [False, True])
def test_a_low_gradient_can_be_multiplied_with_float32(low, level, closed):
    x, w, cell = rand(4, 6), rand(6, 3), Mixing()
    wanted = mindspore.grad(lambda x, w: cell(x, w).sum(), (0, 1))(x, w)

    def loss(x, w):
        if not closed:
            return cell(x, w).astype(F32).sum()
        with under(level, low):
            result = cell(x, w)
        return result.astype(F32).sum()

    if closed:
        found = mindspore.grad(loss, (0, 1))(x, w)
    else:
        with under(level, low):
            found = mindspore.grad(loss, (0, 1))(x, w)
    for gradient, exact in zip(found, wanted, strict=True):
        assert gradient.dtype == F32
        np.testing.assert_allclose(gradient.asnumpy(), exact.asnumpy(), atol=0.05)


def clip(gradients):
    return ops.clip_by_global_norm(gradients, 1.0)


@pytest.mark.parametrize("policy", [Policy("O2", "float16"), Policy("O3", "bfloat16")], ids=str)
@pytest.mark.parametrize("call", [clip, mindspore.jit(clip)], ids=["PyNative", "graph"])
def test_gradients_that_are_clipped_in_a_region_come_to_the_same_bits_as_outside(call, policy):
    gradients = tuple(
        Tensor(np.full(size, value, "float32")) for size, value in ((1000, 1e4), (3, 1e-2))
    )
    known = call(gradients)
    with policy_region(policy):
        found = call(gradients)
        low = call((gradients[0].astype(getattr(mindspore, policy.dtype)), gradients[1]))
    for one, other in zip(found, known, strict=True):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy(), strict=True)
    assert [each.dtype for each in low] == [getattr(mindspore, policy.dtype), mindspore.float32]


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_the_jacobian_of_low_results(low, level):
    x, weight = rand(4, 5), rand(5, 3)

    def product(x):
        return ops.matmul(x, weight)

    def several(x, y):
        return product(x), y.sum()

    def jacobians():
        return mindspore.jacrev(product)(x), mindspore.jacrev(several)(x, x)[0]

    outside = jacobians()
    with policy_region(Policy(level, low)):
        assert product(x).dtype is not F32
        inside = jacobians()
    for mine, theirs in zip(inside, outside, strict=True):
        assert mine.dtype is F32
        np.testing.assert_allclose(mine.asnumpy(), theirs.asnumpy(), rtol=0.01, atol=0.01)
