"""A graph and PyNative mode compute the same in the same dtypes, under a policy.

Every form is called with each feed. MindSpore's compiler reads the source of the forms.
"""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.ops import constexpr

from unamp import Policy, policy_region

F32 = mindspore.float32
LOW = {"float16": mindspore.float16, "bfloat16": mindspore.bfloat16}


#: Rules differ by the level, and do not by the low dtype: each level has one.
LEVELS = [("O1", "bfloat16"), ("O2", "float16"), ("O3", "bfloat16")]


def array(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def positive(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).uniform(0.1, 0.9, shape).astype("float32"))


def _with(function, *rest, **named):
    def form(*given):
        return function(*given, *rest, **named)

    return form


def _joined(a, b):
    return ops.cat((a, b))


def _stacked(a, b):
    return ops.stack((a, b))


def _matmul(a, b):
    return a @ b


def _add(a, b):
    return a + b


def _power(a, b):
    return a**b


def _less(a, b):
    return (a < b).astype(mindspore.float32)


def _in_place(a, b):
    a = a + 0
    a += b
    return a


def _method(a, b):
    return a.matmul(b)


def _filled(a):
    return a.masked_fill(a > 0.5, value=0.25)


def _parts(a):
    return a[0] * 2 + a[1:3, 0].sum()


_LABELS = Tensor([0, 1, 2, 0], mindspore.int32)
_SIGNS = Tensor([1, -1, 1, -1], mindspore.int32)
_A, _B, _C, _P, _Q = (
    array(4, 4),
    array(4, 4, seed=1),
    array(4, 4, seed=2),
    positive(4, 4),
    positive(4, 4, seed=1),
)
_ROW, _IMAGE, _SEQUENCE, _STATE = array(4), array(2, 3, 8, 8), array(5, 2, 4), array(2, 3)

_UNARY = (
    "exp log tanh sigmoid relu gelu softmax log_softmax silu sqrt rsqrt square abs erf elu "
    "sum mean prod std norm log1p celu"
)
_BINARY = "matmul mm add sub mul div pow maximum atan2 floor_divide remainder inner"

#: The forms: functions or layers by family and name, each with its arguments.
FAMILIES = {
    "unary": {name: (getattr(ops, name), (_P,)) for name in _UNARY.split()},
    "binary": {name: (getattr(ops, name), (_P, _Q)) for name in _BINARY.split()},
    "functions": {
        "bias_add": (ops.bias_add, (_A, _ROW)),
        "dense": (ops.dense, (_A, _B, _ROW)),
        "bmm": (ops.bmm, (array(2, 3, 4), array(2, 4, 3))),
        "addmm": (ops.addmm, (_A, _B, _C)),
        "addmv": (ops.addmv, (_ROW, _B, _ROW)),
        "addcmul": (ops.addcmul, (_A, _B, _C)),
        "lerp": (ops.lerp, (_A, _B, _P)),
        "cat": (_joined, (_A, _B)),
        "stack": (_stacked, (_A, _B)),
        "outer": (ops.outer, (_ROW, _ROW)),
        "prelu": (ops.prelu, (_A, array(1))),
        "conv2d": (ops.conv2d, (_IMAGE, array(4, 3, 3, 3), array(4))),
        "cross_entropy": (ops.cross_entropy, (_A, _LABELS)),
        "mse_loss": (ops.mse_loss, (_A, _B)),
        "l1_loss": (ops.l1_loss, (_A, _B)),
        "kl_div": (ops.kl_div, (_A, _P)),
        "cdist": (ops.cdist, (_A, _B)),
        "max_pool2d": (_with(ops.max_pool2d, 2), (_IMAGE,)),
        "mint.linear": (mint.nn.functional.linear, (_A, _B, _ROW)),
        "mint.softmax": (_with(mint.nn.functional.softmax, dim=-1), (_A,)),
    },
    "operators": {
        "@": (_matmul, (_P, _Q)),
        "+": (_add, (_P, _Q)),
        "**": (_power, (_P, _Q)),
        "<": (_less, (_P, _Q)),
        "+=": (_in_place, (_P, _Q)),
        ".matmul": (_method, (_P, _Q)),
        ".masked_fill": (_filled, (_P,)),
        "index": (_parts, (_P,)),
    },
    "layers": {
        "Dense": (nn.Dense(4, 3), (_A,)),
        "Dense and relu": (nn.Dense(4, 3, activation="relu"), (_A,)),
        "Conv1d": (nn.Conv1d(3, 4, 3, has_bias=True), (array(2, 3, 8),)),
        "Conv2d": (nn.Conv2d(3, 4, 3, has_bias=True), (_IMAGE,)),
        "Conv2dTranspose": (nn.Conv2dTranspose(3, 4, 3, has_bias=True), (_IMAGE,)),
        "LayerNorm": (nn.LayerNorm((4,)), (_A,)),
        "BatchNorm2d": (nn.BatchNorm2d(3), (_IMAGE,)),
        "GroupNorm": (nn.GroupNorm(3, 3), (_IMAGE,)),
        "Softmax": (nn.Softmax(), (_A,)),
        "GELU": (nn.GELU(), (_A,)),
        "PReLU": (nn.PReLU(), (_A,)),
        "MaxPool2d": (nn.MaxPool2d(2, 2), (_IMAGE,)),
        "AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d(2), (_IMAGE,)),
        "Embedding": (nn.Embedding(5, 4), (_LABELS,)),
        "BiDense": (nn.BiDense(4, 4, 3), (_A, _B)),
    },
    "losses": {
        "MSELoss": (nn.MSELoss(), (_A, _B)),
        "L1Loss": (nn.L1Loss(), (_A, _B)),
        "SmoothL1Loss": (nn.SmoothL1Loss(), (_A, _B)),
        "MAELoss": (nn.MAELoss(), (_A, _B)),
        "RMSELoss": (nn.RMSELoss(), (_A, _B)),
        "CrossEntropyLoss": (nn.CrossEntropyLoss(), (_A, _LABELS)),
        "NLLLoss": (nn.NLLLoss(), (_A, _LABELS)),
        "BCELoss": (nn.BCELoss(), (_P, _Q)),
        "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), (_A, _P)),
        "SoftmaxCrossEntropyWithLogits": (
            nn.SoftmaxCrossEntropyWithLogits(sparse=True),
            (_A, _LABELS),
        ),
        "KLDivLoss": (nn.KLDivLoss(), (_A, _P)),
        "DiceLoss": (nn.DiceLoss(), (_P, _Q)),
        "CosineEmbeddingLoss": (nn.CosineEmbeddingLoss(), (_A, _B, _SIGNS)),
        "PoissonNLLLoss": (nn.PoissonNLLLoss(), (_A, _P)),
    },
    "recurrent": {
        "LSTM": (nn.LSTM(4, 3), (_SEQUENCE,)),
        "GRU": (nn.GRU(4, 3), (_SEQUENCE,)),
        "RNN": (nn.RNN(4, 3), (_SEQUENCE,)),
        "LSTMCell": (nn.LSTMCell(4, 3), (array(2, 4), (_STATE, _STATE))),
        "GRUCell": (nn.GRUCell(4, 3), (array(2, 4), _STATE)),
        "RNNCell": (nn.RNNCell(4, 3), (array(2, 4), _STATE)),
    },
    "attention": {
        "MultiheadAttention": (nn.MultiheadAttention(4, 2), (array(3, 2, 4),) * 3),
        "TransformerEncoderLayer": (
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
            (array(3, 2, 4),),
        ),
        "TransformerDecoderLayer": (
            nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0),
            (array(3, 2, 4),) * 2,
        ),
    },
}


for _family in FAMILIES.values():
    # one graph holds a family, and takes each name of a parameter once
    nn.CellList([form for form, _ in _family.values() if isinstance(form, nn.Cell)])


def _doubled(value):
    return value + value


def _by_index(given):
    found = ()
    for i in range(2):
        found += (_doubled(given[i]),)
    return found


def _joined_tuples(given):
    first, second = (given[0],), (given[1],)
    return first + second


class _Adder(nn.Cell):
    def construct(self, x):
        return x + x

    def add(self, tensors):
        return tensors


_ADDER = _Adder()


def _of_a_local_cell(given):
    adder = _ADDER
    return adder.add(given)


def lowered(value, low):
    if isinstance(value, tuple):
        return tuple(lowered(each, low) for each in value)
    return value.astype(low) if value.dtype == F32 else value


def feeds(given, level, low):
    """Yield the arguments in float32.

    At O1, where rules differ for low arguments, yield them all low, then the first alone low.
    """
    yield given
    if level == "O1":
        floats = [
            i for i, value in enumerate(given) if isinstance(value, tuple) or value.dtype == F32
        ]
        yield lowered(given, low)
        if len(floats) > 1:
            yield tuple(
                lowered(value, low) if i == floats[0] else value for i, value in enumerate(given)
            )


def flat(result):
    if isinstance(result, (tuple, list)):
        return [tensor for each in result for tensor in flat(each)]
    return [result] if isinstance(result, Tensor) else []


def numbers(tensor):
    return tensor.astype(F32).asnumpy() if tensor.dtype in LOW.values() else tensor.asnumpy()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("level", "dtype"), LEVELS[:2])
def test_a_graph_and_pynative_mode_agree(family, level, dtype):
    forms = {name: form for name, (form, _) in FAMILIES[family].items()}
    fed = [tuple(feeds(args, level, LOW[dtype])) for _, args in FAMILIES[family].values()]
    with policy_region(Policy(level, dtype)):
        of_eager = [
            [form(*given) for given in each] for form, each in zip(forms.values(), fed, strict=True)
        ]
        of_graph = mindspore.jit(_called(tuple(forms.values())))(*fed)
    different = []
    for name, *of_form in zip(forms, fed, of_eager, of_graph, strict=True):
        for given, eager, graph in zip(*of_form, strict=True):
            if (how := _difference(flat(eager), flat(graph))) is not None:
                different.append(
                    f"{name} of {', '.join(str(each.dtype) for each in flat(given))}: {how}"
                )
    assert not different


@pytest.mark.parametrize("low_first", [False, True])
@pytest.mark.parametrize(
    "code", [_by_index, _joined_tuples, _of_a_local_cell], ids=lambda code: code.__name__
)
def test_tensors_in_a_tuple_keep_their_dtypes_in_a_graph(code, low_first):
    given = (
        (_A.astype(mindspore.bfloat16), _A) if low_first else (_A, _A.astype(mindspore.bfloat16))
    )
    with policy_region(Policy("O1", "bfloat16")):
        eager, graph = code(given), mindspore.jit(code)(given)
    assert [each.dtype for each in graph] == [each.dtype for each in given]
    assert _difference(list(eager), list(graph)) is None


def _items_at_a_tensor(x):
    return x[Tensor([1, 0])], x[:, Tensor([0, 1])], x[x > 0.5]


def _items_at_a_list(x):
    return x[[0, 1]], x[:, [1, 0]], x[[True, False, True, False]]


def _items_moved(x):
    return x[1], x[:, 0], x[..., None], [x, x.T][1]


@pytest.mark.parametrize(("level", "low"), LEVELS[:2])
@pytest.mark.parametrize("given", ["float32", "low"])
@pytest.mark.parametrize("code", [_items_at_a_tensor, _items_at_a_list, _items_moved])
def test_items_are_read_in_a_graph_as_in_pynative_mode(code, given, level, low):
    x = _A.astype(LOW[low]) if given == "low" else _A
    with policy_region(Policy(level, low)):
        eager, graph = code(x), mindspore.jit(code)(x)
    assert [each.shape for each in eager] == [each.shape for each in graph]
    assert _difference(list(eager), list(graph)) is None


def _one_item_set(x):
    y, z = x.copy(), ops.matmul(x, x.T)
    y[0] = z[0, 0]
    z[1] = 0.5
    return y, z


def _items_changed(x):
    y = x.copy()
    for i in range(2):
        y[i] += ops.matmul(x, x.T)[i, i]
    y[1:, 2:] *= 2.0
    y[:, 0] = 0.1
    return y


def _chosen_items_set(x):
    y = x.copy()
    y[x > 0.5] = 0.1
    y[Tensor([0, 1])] = ops.matmul(x, x.T)[0, 0]
    return y


def _an_item_at_a_computed_index_changed(x):
    y = x.copy()
    y[max(0, 1)] += ops.matmul(x, x.T)[0, 0]
    return y


@constexpr(reuse_result=False)
def _next():
    _taken.append(len(_taken))
    return len(_taken)


_taken = []


def _items_behind_computed_indices_changed(x):
    y = x.copy()
    y[_next() :] += ops.matmul(x, x.T)[0, 0]
    y[0, _next() :] *= 2.0
    return y


def _items_of_a_list_set(x):
    y = [x, x]
    y[0] = ops.matmul(x, x.T)
    return y[0], y[1]


@pytest.mark.parametrize(("level", "low"), LEVELS[1:])
@pytest.mark.parametrize(
    "code",
    [
        _one_item_set,
        _items_changed,
        _chosen_items_set,
        _an_item_at_a_computed_index_changed,
        _items_of_a_list_set,
    ],
)
def test_items_are_set_in_the_dtype_of_their_tensor_in_a_graph(code, level, low):
    with policy_region(Policy(level, low)):
        eager, graph = code(_A), mindspore.jit(code)(_A)
    assert F32 in {each.dtype for each in flat(graph)}
    assert _difference(flat(eager), flat(graph)) is None


def _functions_of_python(x):
    product = ops.matmul(x, x.T)
    return (
        abs(x),
        abs(product),
        round(x),
        round(product),
        pow(product, 2),
        pow(2, product),
        Tensor(float(abs(-2))),
    )


def _powers_in_place(x):
    y = ops.matmul(x, x.T)
    y **= 2
    return y


def _a_name_of_ones_own(x):
    abs = ops.exp
    return abs(x)


def _with_float64(x):
    wide = Tensor(np.ones((3, 3)), mindspore.float64)
    return x.sum() + wide, wide * x.sum(), ops.matmul(wide, wide)


def _many_views(x):
    low = ops.matmul(x, x.T)
    return mint.unbind(low), mint.split(low, 1), mint.chunk(low, 2)


@pytest.mark.parametrize(("level", "low"), LEVELS)
@pytest.mark.parametrize(
    "code",
    [_functions_of_python, _powers_in_place, _a_name_of_ones_own, _with_float64, _many_views],
)
def test_code_means_the_same_in_a_graph(code, level, low):
    with policy_region(Policy(level, low)):
        eager, graph = code(_A), mindspore.jit(code)(_A)
    assert _difference(flat(eager), flat(graph)) is None


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("kept", [F32, LOW["float16"]], ids=str)
def test_a_parameter_whose_item_is_set_is_changed_in_a_graph(kept, level):
    weight = mindspore.Parameter(Tensor(np.zeros((2, 3)), kept), name="weight")

    @mindspore.jit
    def change(x):
        same = weight
        same[0] = ops.matmul(x, x.T)[0, 0]
        return same

    with policy_region(Policy(level, "float16")):
        change(_A)
    assert weight.dtype == kept
    assert (weight.asnumpy() != 0).tolist() == [[True] * 3, [False] * 3]


def _called(forms):
    """Return a function that calls each form with each of its feeds, all in one graph.

    Compiling takes longer than computing.
    """

    def call(*fed):
        found = ()
        for i, form in enumerate(forms):
            of_form = ()
            for given in fed[i]:
                of_form += (form(*given),)
            found += (of_form,)
        return found

    return call


def _difference(eager, graph):
    """Return the difference between a graph's tensors and those of PyNative mode, or None."""
    dtypes = [str(each.dtype) for each in eager], [str(each.dtype) for each in graph]
    if dtypes[0] != dtypes[1]:
        return f"{dtypes[0]} in PyNative mode, {dtypes[1]} in a graph"
    for a, b in zip(eager, graph, strict=True):
        # MindSpore's float32 kernels differ a little between the modes (log does). So may the
        # results after rounding.
        rounding = {F32: 2.0**-19, LOW["float16"]: 2.0**-9, LOW["bfloat16"]: 2.0**-6}.get(
            a.dtype, 0.0
        )
        if not np.allclose(numbers(a), numbers(b), rtol=rounding, atol=rounding):
            return f"other numbers: {np.abs(numbers(a) - numbers(b)).max()} apart"
    return None


@pytest.mark.parametrize(("level", "low"), LEVELS[:2])
def test_an_index_is_computed_once_in_a_graph(level, low):
    _taken.clear()
    with policy_region(Policy(level, low)):
        graph = mindspore.jit(_items_behind_computed_indices_changed)(_A)
    assert _taken == [0, 1]
    assert graph.dtype is F32


_by_types = ops.MultitypeFuncGraph("by_types")


@_by_types.register("Tensor", "Tensor")
def _of_tensors(a, b):
    return ops.softmax(ops.matmul(a, b))


@_by_types.register("Number", "Tensor")
def _of_number(number, a):
    return nn.ClipByNorm()(a @ a, ops.cast(ops.tuple_to_array((number,)), a.dtype))


_for_each, _for_each_given = ops.HyperMap(), ops.HyperMap(_by_types)


def _chosen_by_types(a, b):
    return _by_types(a, b), *_for_each(ops.partial(_by_types, 0.5), (a, b))


def _mapped(a, b):
    return _for_each_given((a, b), (b, a))


class _Shifted(nn.Cell):
    def __init__(self, shift):
        super().__init__()
        self.shift, self.relu = shift, nn.ReLU()

    def construct(self, a):
        return self.relu(ops.matmul(a, a)) + self.shift


def _cells_that_are_made(a, b):
    return nn.ReLU()(a @ b), nn.Softmax()(a @ b), _Shifted(2)(a), _Shifted(shift=3)(b)


@pytest.mark.parametrize(("level", "low"), LEVELS)
@pytest.mark.parametrize("code", [_chosen_by_types, _mapped, _cells_that_are_made])
def test_what_a_graph_chooses_or_makes_follows_the_policy(code, level, low):
    a, b = array(3, 3), array(3, 3, seed=1)
    compiled = mindspore.jit(code)
    exact = compiled(a, b)
    with policy_region(Policy(level, low)):
        found, expected = compiled(a, b), code(a, b)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(
            one.astype(F32).asnumpy(), other.astype(F32).asnumpy(), rtol=0.02, atol=0.01
        )
    for one, other in zip(compiled(a, b), exact, strict=True):
        assert one.dtype == F32
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


class _Asking(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = nn.Dense(3, 3)

    def construct(self, a):
        a = self.inner(a)
        if isinstance(self.inner, nn.Dense):
            a = a + 100
        if isinstance(self.inner, (nn.ReLU, nn.Conv2d)):
            a = a + 1000
        return a


def test_a_graph_asks_of_which_class_a_cell_is():
    asking = _Asking()
    with policy_region(Policy("O1", "float16")):
        found = mindspore.jit(asking)(array(3, 3)).astype(F32).asnumpy()
    assert ((found > 50) & (found < 500)).all()


@mindspore.jit
def _drawn(rates):
    shape = Tensor([3], mindspore.int32)
    return (
        ops.standard_normal((3,), seed=7),
        ops.standard_laplace((3,), seed=7),
        ops.random_gamma(shape, rates, seed=7),
        ops.random_poisson(shape, rates, seed=7),
        ops.random_categorical(rates, 3, seed=7),
        ops.multinomial_with_replacement(rates, 7, 0, 3),
        ops.randint(0, 9, (3,), seed=7),
        ops.rand_like(rates, seed=7),
    )


@pytest.mark.parametrize(("level", "low"), LEVELS[:2])
def test_a_graph_draws_in_float32_in_a_region(level, low):
    rates = positive(2, 4)
    plain = _drawn(rates)
    with policy_region(Policy(level, low)):
        found = _drawn(rates)
    for one, other in zip(found, plain, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
    for one in found[:3]:
        assert (one.astype(LOW[low]).astype(F32) != one).any()


def _flattened(a):
    return mint.flatten(a @ a)


def test_a_function_that_mindspore_wraps_runs_in_a_graph():
    with policy_region(Policy("O1", "float16")):
        found, expected = mindspore.jit(_flattened)(array(3, 3)), _flattened(array(3, 3))
    assert found.dtype == expected.dtype == mindspore.float16
    np.testing.assert_array_equal(found.asnumpy(), expected.asnumpy())
