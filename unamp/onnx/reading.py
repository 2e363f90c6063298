"""Read ONNX files, which are not trusted: a graph's nodes and the dtypes of their values.

Only the file itself is read. Weights may be in other files beside it, but their shapes and dtypes
are here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from unamp.dtypes import PRECISIONS, dtype_name
from unamp.errors import shortened
from unamp.onnx.operators import STANDARD, described, refusal, result_dtypes

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message

_LARGEST = 1 << 31  # bytes of a message in protocol buffers
_MOST_NUMBERS = 1 << 48  # numbers of a tensor; no memory holds as many

#: Metadata that PyTorch's exporter writes at each node: the names of its layers and its operation,
#: and their classes.
_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"


class BadModel(ValueError):
    """A file that is no valid ONNX model; the message says where and why, in one line."""


class Value(NamedTuple):
    """A value of a graph.

    Attributes:
        name: the value's name in the file.
        dtype: the value's dtype; None where it is not known.
        maker: the number of the node that makes it; None for an input or an initializer.
        numbers: the number of numbers of an initializer or a constant; None for other values.
    """

    name: str
    dtype: str | None
    maker: int | None = None
    numbers: int | None = None


class Node(NamedTuple):
    """A node of a graph, or of a graph inside it.

    Attributes:
        name: the node's name, or one made of its type and position.
        domain: the domain of its operator.
        kind: the type of its operator.
        inputs, outputs: the numbers of the values that it takes and gives.
        kinds: the type variable of each input, in the description of the operator.
        scopes: the names of its layers, the outermost first, and of its operation; empty where the
            exporter wrote none.
        classes: the classes of those layers, and the exporter's name of the operation.
        graph: the number of the graph that it is in.
        refusal: the reason why ONNX does not allow its input dtypes; empty where it does.
        named: whether its name is in the file.
    """

    name: str
    domain: str
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kinds: tuple[str, ...]
    scopes: tuple[str, ...]
    classes: tuple[str, ...]
    graph: int
    refusal: str
    named: bool


class Graph(NamedTuple):
    """A graph and its inner graphs, in one list, each node behind the nodes that make its inputs.

    Attributes:
        nodes: the nodes.
        values: the values.
        results: the numbers of the values that leave the graph, or an inner graph.
        producer: the exporter, by the name that it writes.
    """

    nodes: list[Node]
    values: list[Value]
    results: set[int]
    producer: str

    def maker(self, number: int) -> Node | None:
        """Return the node that makes a value; None for an input or an initializer."""
        made_by = self.values[number].maker
        return None if made_by is None else self.nodes[made_by]

    def consumers(self) -> list[list[int]]:
        """Return, for each value, the numbers of the nodes that take it."""
        found: list[list[int]] = [[] for _ in self.values]
        for place, node in enumerate(self.nodes):
            for number in node.inputs:
                found[number].append(place)
        return found


def read_graph(path: Path) -> Graph:
    """Return the graph of a file.

    Raises:
        BadModel: where the file is no valid model.
        ModuleNotFoundError: where the package `onnx` is not installed; the message says what to do.
        OSError: where the file cannot be read.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"reading ONNX files needs {error.name}, which is not installed; "
            "pip install 'unamp[onnx]'",
            name=error.name,
        ) from error
    if path.exists() and not path.is_file():
        raise BadModel("it is no file")
    if path.stat().st_size >= _LARGEST:
        raise BadModel(
            "it is larger than 2 GiB, which no ONNX file can be; "
            "weights belong into a file of their own"
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise BadModel("it is no ONNX model, or not all of one") from error
    if not _all_text(model):
        raise BadModel("it is no ONNX model: a name in it is no UTF-8")
    return _Reader(onnx, path.parent, model).graph()


def _all_text(message: Message) -> bool:
    """Return whether every string of a message is text.

    Protocol buffers give bytes where a string is not UTF-8.
    """
    for field, found in message.ListFields():
        if field.type in (field.TYPE_STRING, field.TYPE_MESSAGE):
            values = (
                (found,)
                if isinstance(found, str | bytes) or hasattr(found, "ListFields")
                else found
            )
            if not all(
                isinstance(each, str) or (not isinstance(each, bytes) and _all_text(each))
                for each in values
            ):
                return False
    return True


class _Place(NamedTuple):
    """A graph that is being read: its number, names so far, declared dtypes, and nodes' results."""

    number: int
    graph: onnx.GraphProto
    known: dict[str, int]
    declared: dict[str, str | None]
    made: set[str]


class _Reader:
    """The state of the reading of a model."""

    def __init__(self, onnx: ModuleType, folder: Path, model: onnx.ModelProto) -> None:
        self._tensor, self._folder, self._model = onnx.TensorProto, folder.resolve(), model
        self._opsets = {
            "" if each.domain in STANDARD else each.domain: each.version
            for each in model.opset_import
        }
        self._nodes: list[Node] = []
        self._values: list[Value] = []
        self._results: set[int] = set()
        self._graphs_read = 0

    def graph(self) -> Graph:
        """Return the graph of the model."""
        if (
            not self._model.HasField("graph")
            or "" not in self._opsets
            or not self._model.graph.output
        ):
            raise BadModel(
                "it is no ONNX model: it has no graph with results, "
                "or says no version of ONNX's operators"
            )
        self._read(self._model.graph, {})
        return Graph(self._nodes, self._values, self._results, self._model.producer_name)

    def _read(self, graph: onnx.GraphProto, around: Mapping[str, int]) -> list[int]:
        """Read a graph, or an inner graph; return the numbers of its results."""
        place = _Place(self._graphs_read, graph, dict(around), {}, set())
        self._graphs_read += 1
        place.declared.update(
            (each.name, self._declared(each)) for each in (*graph.value_info, *graph.output)
        )
        for given in graph.input:
            place.known[given.name] = self._add(given.name, self._declared(given))
        for tensor in graph.initializer:
            dtype, numbers = self._checked(tensor, tensor.name)
            place.known[tensor.name] = self._add(tensor.name, dtype, numbers=numbers)
        for sparse in graph.sparse_initializer:
            place.known[sparse.values.name] = self._add(
                sparse.values.name, self._dtype(sparse.values.data_type)
            )
        for position, node in enumerate(graph.node):
            self._read_node(node, node.name or f"{node.op_type}_{position}", place)
        results = [_found(each.name, "the graph gives", place) for each in graph.output]
        self._results.update(results)
        return results

    def _read_node(self, node: onnx.NodeProto, name: str, place: _Place) -> None:
        inputs = [
            _found(each, f"node {shortened(name)} takes", place) if each else None
            for each in node.input
        ]
        inner = [self._read(each, place.known) for each in self._graphs(node, name)]
        given = [None if each is None else self._values[each].dtype for each in inputs]
        operator = described(node.domain, node.op_type, self._opsets)
        dtypes = result_dtypes(node, given, operator, self._dtype)
        if inner:
            # the first result of a loop's body is the condition to go on
            own = inner[0][1:] if node.op_type == "Loop" else inner[0]
            dtypes = [self._values[each].dtype for each in own[: len(dtypes)]] + dtypes[len(own) :]
        number = len(self._nodes)
        outputs = tuple(
            self._add(
                each,
                dtype or place.declared.get(each),
                maker=number,
                numbers=_constant_numbers(node),
            )
            for each, dtype in zip(node.output, dtypes, strict=True)
        )
        for each, output in zip(node.output, outputs, strict=True):
            if each in place.made:
                raise BadModel(f"two nodes make {shortened(each)}")
            if each:
                place.known[each] = output
                place.made.add(each)
        kinds = zip(inputs, operator.kinds(len(inputs)), strict=True)
        there = [(each, kind) for each, kind in kinds if each is not None]
        scopes, classes = _labels(node)
        self._nodes.append(
            Node(
                name=name,
                domain=node.domain,
                kind=node.op_type,
                inputs=tuple(each for each, _ in there),
                outputs=outputs,
                kinds=tuple(kind for _, kind in there),
                scopes=scopes,
                classes=classes,
                graph=place.number,
                refusal=refusal(node, given, operator, self._opsets.get(node.domain, 1)),
                named=bool(node.name),
            )
        )

    def _graphs(self, node: onnx.NodeProto, name: str) -> Iterable[onnx.GraphProto]:
        """Yield the graphs inside a node; also check the tensors inside it."""
        for attribute in node.attribute:
            tensors = [*attribute.tensors, *([attribute.t] if attribute.HasField("t") else [])]
            for tensor in tensors:
                self._checked(tensor, name)
            yield from attribute.graphs
            if attribute.HasField("g"):
                yield attribute.g

    def _add(
        self, name: str, dtype: str | None, maker: int | None = None, numbers: int | None = None
    ) -> int:
        self._values.append(Value(name, dtype, maker, numbers))
        return len(self._values) - 1

    def _declared(self, value: onnx.ValueInfoProto) -> str | None:
        number = value.type.tensor_type.elem_type
        return self._dtype(number) if number else None

    def _dtype(self, number: int) -> str:
        try:
            return dtype_name(self._tensor.DataType.Name(number)) or ""
        except ValueError:
            raise BadModel(f"there is no dtype {number} in ONNX") from None

    def _checked(self, tensor: onnx.TensorProto, name: str) -> tuple[str, int]:
        """Return the dtype of a tensor, and the number of its numbers."""
        dtype = self._dtype(tensor.data_type)
        if any(size < 0 for size in tensor.dims):
            raise BadModel(f"tensor {shortened(name)} has a negative size")
        numbers = 0 if 0 in tensor.dims else 1
        for size in tensor.dims:
            # checked after each size: a product of thousands of sizes would itself be too large
            numbers *= size
            if numbers > _MOST_NUMBERS:
                raise BadModel(
                    f"tensor {shortened(name)} says that it has more numbers than any memory"
                )
        if tensor.data_location == self._tensor.EXTERNAL:
            self._check_location(tensor, name)
        elif dtype in PRECISIONS:
            stored = (
                len(tensor.raw_data) / PRECISIONS[dtype].size
                if tensor.raw_data
                else len(_data(tensor, dtype))
            )
            if stored != numbers:
                raise BadModel(
                    f"tensor {shortened(name)} says {numbers} numbers and has {math.floor(stored)}"
                )
        return dtype, numbers

    def _check_location(self, tensor: onnx.TensorProto, name: str) -> None:
        """Raise where a tensor's data lies outside of the model's folder."""
        location = next((each.value for each in tensor.external_data if each.key == "location"), "")
        try:
            inside = bool(location) and (self._folder / location).resolve().is_relative_to(
                self._folder
            )
        except (OSError, RuntimeError, ValueError):  # not a file's name, or a circle of links
            inside = False
        if not inside:
            raise BadModel(
                f"tensor {shortened(name)} has its data in {shortened(location)}, "
                "outside of the model's folder"
            )


def _constant_numbers(node: onnx.NodeProto) -> int | None:
    """Return the size of a constant tensor, which was checked before; None for other nodes."""
    if node.op_type != "Constant" or node.domain not in STANDARD:
        return None
    return next((math.prod(each.t.dims) for each in node.attribute if each.name == "value"), None)


def _found(name: str, who: str, place: _Place) -> int:
    """Return the number of a value, by its name."""
    if name in place.known:
        return place.known[name]
    if any(name in node.output for node in place.graph.node):
        raise BadModel(
            f"{who} {shortened(name)}, which no node before makes: "
            "there is a cycle, or nodes are out of order"
        )
    raise BadModel(f"{who} {shortened(name)}, which nothing makes")


def _labels(node: onnx.NodeProto) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a node's layers and operation, and their classes."""
    said = {each.key: each.value for each in node.metadata_props}
    scopes, classes = _listed(said.get(_SCOPES, "")), _listed(said.get(_CLASSES, ""))
    return (scopes, classes) if len(scopes) == len(classes) else ((), ())


def _data(tensor: onnx.TensorProto, dtype: str) -> Sequence[float]:
    """Return the numbers of a tensor that stores them one by one."""
    found: Sequence[float] = {"float32": tensor.float_data, "float64": tensor.double_data}.get(
        dtype, tensor.int32_data
    )
    return found


#: A list of names, as Python prints it.
_NAMES = re.compile(r"\[(?:'[^'\\]*'(?:, (?=')|(?=\])))+\]")


def _listed(text: str) -> tuple[str, ...]:
    """Return the names in a list that Python printed; nothing for other texts."""
    return tuple(re.findall(r"'([^'\\]*)'", text)) if _NAMES.fullmatch(text) else ()
