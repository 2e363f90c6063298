"""grappler's own test graphs, with the dtypes that its tests expect for each node.

The graphs are those of TensorFlow's ``auto_mixed_precision_test.cc`` and
``auto_mixed_precision_test.py``. grappler rewrites a whole graph and knows the nodes after a node.
unamp decides by an operation's inputs alone. So a case also names the nodes at which the two
differ. At each of them, grappler decides by more than the dtypes of the node's inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

__all__ = ["CASES", "LOOPS", "LOW", "WIDE", "Case", "Node", "Place"]

LOW, WIDE = "low", "float32"


class Place:
    """A graph under construction; it records the named nodes and their dtypes.

    Attributes:
        low: the low dtype.
        dtypes: the dtypes of the nodes.
        tensors: the nodes themselves.
    """

    def __init__(self, low: str) -> None:
        self.low = low
        self.dtypes: dict[str, str] = {}
        self.tensors: dict[str, Any] = {}

    def __call__(self, called: str, value: Any) -> Any:
        """Record a node under a name, and return it."""
        self.dtypes[called] = LOW if value.dtype == self.low else value.dtype.name
        self.tensors[called] = value
        return value

    def variable(self) -> Any:
        """Return a variable of ones."""
        if tf.executing_eagerly() or tf.inside_function():
            return VARIABLE
        # as in grappler's test
        return tf.compat.v1.Variable(tf.ones((32, 32)), use_resource=False)._ref()


Node = Place


class Case(NamedTuple):
    """A graph of grappler's tests.

    Attributes:
        build: builds the graph.
        expected: the dtype of each node, as grappler's test has it.
        later: the nodes that have the other dtype under unamp, since grappler also looks at nodes
            after them, or far before.
        fetched: the nodes that are fetched besides the last ones.
        on_cpu: the nodes to which grappler gives the other dtype when it rewrites for a CPU, as it
            can here, than in its test.
        trained: whether a gradient of the first node is computed, too, as in grappler's tests in
            Python.
    """

    build: Callable[[Node], Any]
    expected: dict[str, str]
    later: str = ""
    fetched: str = ""
    on_cpu: str = ""
    trained: bool = False

    def but(self, nodes: str) -> dict[str, str]:
        """Return the dtypes that grappler's test expects, with the other dtype at some nodes."""
        other = {LOW: WIDE, WIDE: LOW}
        return {
            name: other[dtype] if name in nodes.split() else dtype
            for name, dtype in self.expected.items()
        }


def square(value: float = 1 / 32) -> Any:
    return tf.constant(value, shape=(32, 32))


# --- auto_mixed_precision_test.cc -----------------------------------------------------------------


def no_op(node: Node) -> None:
    x = node("deny1", tf.exp(tf.fill((32,), 1.234)))
    x = node("clr1", tf.nn.relu(x))
    x = node("infer1", tf.sqrt(x))
    node("clr2", tf.nn.relu(x))


def already_low(node: Node) -> None:
    x = node("cst1", tf.cast(square(1.0), node.low))
    x = node("allow1", tf.matmul(x, x))
    x = node("clr1", tf.nn.relu(x))
    x = node("cst2", tf.cast(x, tf.float32))
    node("clr2", tf.nn.relu(x))


def simple(node: Node) -> None:
    x = node("deny1", tf.exp(square()))
    x = node("clr1", tf.nn.relu(x))
    x = node("infer1", tf.sqrt(x))
    x = node("clr2", tf.nn.relu(x))
    x = node("allow1", tf.matmul(x, x))
    x = node("clr3", tf.nn.relu(x))
    x = node("infer2", tf.math.log(x))
    x = node("clr4", tf.nn.relu(x))
    x = node("deny2", tf.exp(x))
    node("clr5", tf.nn.relu(x))


def bidirectional_clear_chain(node: Node) -> None:
    x = square()
    first, second = node("clr1", tf.nn.relu(x)), node("clr2", tf.nn.relu(x))
    node("allow1", tf.matmul(first, first))
    tf.raw_ops.ShapeN(input=[first, second])
    node("clr4", tf.nn.relu(second))


def preserve_fetches(node: Node) -> None:
    x = square()
    x = node("allow1", tf.matmul(x, x))
    x = node("clr1", tf.nn.relu(x))
    x = node("infer1", tf.sqrt(x))
    x = node("deny1", tf.exp(x))
    x = node("clr2", tf.nn.relu(x))
    x = node("allow2", tf.matmul(x, x))
    x = node("clr3", tf.nn.relu(x))
    x = node("deny2", tf.exp(x))
    node("clr4", tf.nn.relu(x))


def preserve_cpu_nodes(node: Node) -> None:
    x = node("clr1", tf.nn.relu(square()))
    x = node("allow1", tf.matmul(x, x))
    x = node("infer1", tf.tanh(x))
    x = node("allow2", tf.matmul(x, x))
    node("clr2", tf.nn.relu(x))


def identity_after_variable(node: Node) -> None:
    x = square()
    weight = node("clr1", tf.identity(node.variable()))
    node("allow1", tf.matmul(x, weight))
    constant = node("clr2", tf.identity(square()))
    node("allow2", tf.matmul(x, constant))


def fused_batch_norm(node: Node) -> None:
    x, weight = tf.fill((2, 8, 8, 16), 1 / 32), tf.fill((3, 3, 16, 16), 0.02)
    scale, offset, none = tf.fill((16,), 3.0), tf.fill((16,), 4.0), tf.zeros((0,))
    allowed = node("allow1", tf.nn.conv2d(x, weight, 1, "SAME"))
    y, *_, first, second, third = tf.raw_ops.FusedBatchNormV3(
        x=allowed, scale=scale, offset=offset, mean=none, variance=none
    )
    node("fbn1", y)
    back = tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=y,
        x=allowed,
        scale=scale,
        reserve_space_1=first,
        reserve_space_2=second,
        reserve_space_3=third,
    )
    x = node("infer1", tf.add(y, node("bng1", back.x_backprop)))
    node("allow2", tf.nn.conv2d(x, weight, 1, "SAME"))


def list_type_attrs(node: Node) -> None:
    x = square()
    x = node("allow1", tf.matmul(x, x))
    several = tf.identity_n([x, x, x])
    node("clr1", several[0])
    x = node("infer1", tf.add_n(several))
    node("allow2", tf.matmul(x, x))


def existing_cast(node: Node) -> None:
    x = node("cst1", tf.cast(tf.fill((32, 32), True), tf.float32))
    node("allow1", tf.matmul(x, x))


def recurrent_edge_colour_mismatch(node: Node) -> None:
    def body(x: Any) -> Any:
        inner = node("infer1", tf.sqrt(x))
        return (node("allow1", tf.matmul(inner, inner)),)

    start = node("deny1", tf.exp(square()))
    node("ext1", tf.while_loop(lambda x: False, body, (start,))[0])


def tensor_list_set_get(node: Node) -> None:
    x = square()
    first = tf.TensorArray(tf.float32, 8, clear_after_read=False).write(1, x)
    first = first.write(2, node("allow1", tf.matmul(x, x)))
    inferred = node("infer1", tf.tanh(node("tl1r1", first.read(2))))
    node("tl1r2", first.write(3, node("allow2", tf.matmul(inferred, inferred))).read(3))
    node("tl2r1", tf.TensorArray(tf.float32, 8).write(1, x).read(1))


def tensor_list_push_pop(node: Node) -> None:
    x = square()
    array = (
        tf.TensorArray(tf.float32, 0, dynamic_size=True)
        .write(0, x)
        .write(1, node("allow1", tf.matmul(x, x)))
    )
    inferred = node("infer1", tf.tanh(node("tl1r1", array.read(1))))
    node("allow2", tf.matmul(inferred, inferred))


def tensor_list_from_tensor(node: Node) -> None:
    x = square()
    allowed = node("allow1", tf.matmul(x, x))
    stacked = node("tl1r1", tf.TensorArray(allowed.dtype, 32).unstack(allowed).stack())
    inferred = node("infer1", tf.tanh(stacked))
    node("allow2", tf.matmul(inferred, inferred))


def tensor_list_batch_and_concat(node: Node) -> None:
    x = square()
    allowed = node("allow1", tf.matmul(x, x))
    pair = tf.stack([allowed, allowed])
    joined = tf.concat(tf.unstack(pair), 0)
    inferred = node("infer1", tf.tanh(joined[:32]))
    node("allow2", tf.matmul(inferred, inferred))


def tensor_list_through_function(node: Node) -> None:
    x = square()
    inferred = node("infer1", tf.tanh(node("allow1", tf.matmul(x, x))))

    @tf.function
    def inside(value: Any) -> Any:
        return tf.TensorArray(value.dtype, 2).write(0, value).read(0)

    node("allow2", tf.matmul(inside(inferred), node("tl2r1", inside(inferred))))


def batch_mat_mul(node: Node) -> None:
    x = tf.fill((8, 32, 32), 1 / 33)
    node("allow1", tf.raw_ops.BatchMatMul(x=x, y=x))


def denied_beside_low(node: Node) -> None:
    x = square()
    x = node("infer1", node("allow1", tf.matmul(x, x)) + node("deny1", tf.exp(x)))
    node("allow2", tf.matmul(x, x))


def unary(function: Callable[[Any], Any]) -> Callable[[Node], None]:
    def build(node: Node) -> None:
        x = node("allow1", tf.matmul(square(0.5), tf.eye(32)))
        node("allow2", tf.matmul(node("infer1", function(x)), tf.eye(32)))

    return build


# --- auto_mixed_precision_test.py -----------------------------------------------------------------


def conv_pool(node: Node) -> None:
    x = tf.fill((2, 8, 8, 1), 0.1)
    for n, (before, after) in enumerate(((1, 6), (6, 4)), 1):
        x = node(f"conv{n}", tf.nn.conv2d(x, tf.fill((3, 3, before, after), 0.1), 1, "SAME"))
        x = node(
            f"relu{n}", tf.nn.relu(node(f"bias{n}", tf.nn.bias_add(x, tf.fill((after,), 0.1))))
        )
        x = node(f"pool{n}", tf.nn.max_pool2d(x, 2, 2, "SAME"))


def conv_bn_dropout(node: Node) -> None:
    x = tf.fill((2, 8, 8, 1), 0.1)
    for n in (1, 2):
        x = node(f"conv{n}", tf.nn.conv2d(x, tf.fill((3, 3, x.shape[-1], 6), 0.1), 1, "SAME"))
        x = node(f"bn{n}", tf.compat.v1.nn.fused_batch_norm(x, tf.ones(6), tf.ones(6))[0])
        x = node(f"addition{n}", tf.add(tf.nn.dropout(x, 0.5), 1))


def multi_paths(node: Node) -> None:
    x = tf.fill((8, 8), 0.1)
    first, second = (
        tf.nn.relu(node(f"matmul{n}", tf.matmul(x, tf.fill((8, 8), 0.1)))) for n in (1, 2)
    )
    node("sum", node("relu1", first) + second)


def recurrent_lstm(node: Node) -> None:
    def body(i: Any, c: Any, h: Any) -> Any:
        joined = tf.concat([tf.fill((8, 4), 0.1), h], axis=1)
        gates = node(
            "split",
            tf.split(node("matmul", tf.matmul(joined, tf.fill((8, 16), 0.1))), 4, axis=1)[0],
        )
        i_gate = node("sigmoid", tf.sigmoid(tf.nn.bias_add(gates, tf.fill((4,), 0.1))))
        new = node("tanh", tf.tanh(tf.nn.bias_add(gates, tf.fill((4,), 0.1))))
        next_c = i_gate * c + i_gate * new
        return i + 1, next_c, i_gate * node("tanh_1", tf.tanh(next_c))

    start = tf.constant(0), tf.fill((8, 4), 0.1), tf.fill((8, 4), 0.1)
    tf.while_loop(lambda i, c, h: i < 4, body, start)


def simple_loop(before: str, inside: str, after: str) -> Case:
    """Return the case of one of grappler's loops.

    The letters are node kinds: w allow, g infer, c clear, b deny. A capital means that grappler
    expects low.
    """

    def colour(letter: str, x: Any) -> Any:
        if letter == "w":
            return tf.matmul(x, tf.fill((8, 8), 0.1))
        if letter == "g":
            return tf.add(x, 0.1)
        return tf.nn.relu(x) if letter == "c" else tf.sqrt(tf.pow(x, 2.0))

    def chain(section: str, letters: str, x: Any, node: Node) -> Any:
        for n, letter in enumerate(letters.lower()):
            x = node(f"{section}{n}", colour(letter, x))
        return x

    def build(node: Node) -> None:
        x = chain("input", before, tf.fill((8, 8), 0.1), node)
        loop = tf.while_loop(
            lambda i, _: i < 4,
            lambda i, x: (i + 1, chain("body", inside, x, node)),
            (tf.constant(0), x),
        )
        chain("output", after, loop[1], node)

    sections = (("input", before), ("body", inside), ("output", after))
    return Case(
        build,
        {
            f"{name}{n}": LOW if c.isupper() else WIDE
            for name, cs in sections
            for n, c in enumerate(cs)
        },
    )


def says(low: str = "", wide: str = "") -> dict[str, str]:
    return {**dict.fromkeys(low.split(), LOW), **dict.fromkeys(wide.split(), WIDE)}


VARIABLE = tf.Variable(tf.ones((32, 32)))

UNARY = {
    "elu": tf.nn.elu, "erf": tf.math.erf, "erfc": tf.math.erfc,
    "inv": lambda x: tf.raw_ops.Inv(x=x), "log": tf.math.log, "log1p": tf.math.log1p,
    "log_softmax": tf.nn.log_softmax, "reciprocal": tf.math.reciprocal, "sigmoid": tf.sigmoid,
    "softmax": tf.nn.softmax, "softplus": tf.nn.softplus, "sqrt": tf.sqrt, "tanh": tf.tanh,
    "leaky_relu": tf.nn.leaky_relu,
}  # fmt: skip

CASES = {
    "NoOp": Case(no_op, says(wide="deny1 clr1 infer1 clr2")),
    "AlreadyFp16": Case(already_low, says("cst1 allow1 clr1", "cst2 clr2")),
    "Simple": Case(
        simple,
        says("clr2 allow1 clr3", "deny1 clr1 infer1 infer2 clr4 deny2 clr5"),
        later="clr2 infer2 clr4",
    ),
    "BidirectionalClearChain": Case(
        bidirectional_clear_chain, says("clr1 clr2 allow1 clr4"), later="clr1 clr2 clr4"
    ),
    # grappler returns fetched nodes in float32; a region's results keep the dtype of their
    # computation.
    "PreserveFetches": Case(
        preserve_fetches,
        says("allow2", "allow1 clr1 infer1 deny1 clr2 clr3 deny2 clr4"),
        later="allow1 clr1 infer1 clr3",
        fetched="allow1 clr2 clr3",
    ),
    # On a GPU, grappler also keeps nodes that are placed on a CPU in float32.
    "PreserveCPUNodes": Case(
        preserve_cpu_nodes,
        says("clr1 allow1", "infer1 allow2 clr2"),
        later="clr1 infer1 allow2 clr2",
        on_cpu="infer1 allow2 clr2",
    ),
    "PreserveIdentityAfterVariable": Case(
        identity_after_variable, says("allow1 clr2 allow2", "clr1"), later="clr2"
    ),
    "FusedBatchNorm": Case(fused_batch_norm, says("allow1 fbn1 bng1 infer1 allow2")),
    "RepeatedAndListTypeAttrs": Case(list_type_attrs, says("allow1 clr1 infer1 allow2")),
    "ExistingCast": Case(existing_cast, says("cst1 allow1"), later="cst1"),
    "RecurrentEdgeColorMismatch": Case(
        recurrent_edge_colour_mismatch, says("allow1", "deny1 infer1 ext1")
    ),
    # A list with a stated dtype of float32 stays so here; grappler changes the list.
    "TensorListSetGet": Case(
        tensor_list_set_get,
        says("allow1 tl1r1 infer1 allow2 tl1r2", "tl2r1"),
        later="tl1r1 infer1 tl1r2",
    ),
    "TensorListPushPop": Case(
        tensor_list_push_pop, says("allow1 tl1r1 infer1 allow2"), later="tl1r1 infer1"
    ),
    "TensorListFromTensor": Case(tensor_list_from_tensor, says("allow1 tl1r1 infer1 allow2")),
    "TensorListPushBackBatchAndConcatLists": Case(
        tensor_list_batch_and_concat, says("allow1 infer1 allow2")
    ),
    # Here the call of a function is on no list; in grappler's test, the function's nodes are in the
    # graph.
    "TensorListThroughFunction": Case(
        tensor_list_through_function, says("allow1 infer1 tl2r1 allow2"), on_cpu="tl2r1"
    ),
    # Not one of grappler's tests. A denied node's results stay float32 up to the next allowed node,
    # also where another input is low.
    "denied beside low": Case(
        denied_beside_low, says("allow1 allow2", "deny1 infer1"), later="infer1"
    ),
    "BatchMatMul": Case(batch_mat_mul, says("allow1")),
    **{
        f"unary {name}": Case(unary(function), says("allow1 infer1 allow2"))
        for name, function in UNARY.items()
    },
    "conv_pool": Case(conv_pool, says("conv1 bias1 relu1 pool1 conv2 bias2 relu2 pool2")),
    "conv_bn_dropout": Case(conv_bn_dropout, says("conv1 bn1 addition1 conv2 bn2")),
    "multi_paths_2": Case(multi_paths, says("matmul1 matmul2 relu1 sum"), trained=True),
    "recurrent_lstm": Case(recurrent_lstm, says("matmul split sigmoid tanh tanh_1")),
    "loop 1": simple_loop("W", "C", "C"),
    "loop 2": simple_loop("C", "C", "W")._replace(later="input0 body0"),
    "loop 3": simple_loop("W", "G", "W"),
    "loop 4": simple_loop("W", "gbg", "W")._replace(later="body0"),
    "loop 5": simple_loop("b", "gWC", "c"),
    "loop 6": simple_loop("b", "CWCG", "C")._replace(later="body0 output0"),
    "loop 7": simple_loop("C", "GWCG", "C")._replace(later="input0 body0 output0"),
    "loop 8": simple_loop("C", "CgbgWC", "g")._replace(later="input0 body0"),
}


#: Eager loops are Python's own: nothing fixes the dtypes of their variables.
LOOPS = [name for name in CASES if name.startswith(("loop", "Recurrent"))]
