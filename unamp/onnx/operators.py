"""ONNX operator types: the vocabulary's operations that they may be, and their result dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from unamp._data import load_table
from unamp.dtypes import PRECISIONS, dtype_name

if TYPE_CHECKING:
    import onnx

#: The domain of ONNX Runtime's own operators.
CONTRIBUTED = "com.microsoft"

#: The names of ONNX's own domain.
STANDARD = ("", "ai.onnx")

#: Operators that hold graphs, whose results are those of the graphs.
_WITH_GRAPHS = ("If", "Loop", "Scan")

#: Operators that ONNX Runtime keeps in ONNX's domain, although ONNX does not know them.
_MISPLACED = ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")


@cache
def _tables() -> Mapping[str, Any]:
    return load_table("onnx.toml")


def type_operations(domain: str, kind: str) -> tuple[str, ...]:
    """Return the operations that a node of an operator type may be; none outside the vocabulary."""
    if domain not in (*STANDARD, CONTRIBUTED):
        return ()
    ours = domain in STANDARD and kind not in _MISPLACED
    return _listed("operators" if ours else "contributed", kind)


def operator_types() -> dict[str, frozenset[str]]:
    """Return, for each operator type, the operations that it may be in any domain."""
    lists = ("operators", "contributed")
    kinds = {kind for name in ("unnamed", *lists) for kind in _tables()[name]}
    return {kind: frozenset(op for name in lists for op in _listed(name, kind)) for kind in kinds}


def _listed(table: str, kind: str) -> tuple[str, ...]:
    """Return the operations that a table has for an operator type; none where it lacks the type."""
    found: str | Sequence[str] = _tables()[table].get(kind, ())
    return (found,) if isinstance(found, str) else tuple(found)


class Described(NamedTuple):
    """ONNX's description of an operator; empty where ONNX has none.

    Attributes:
        inputs, outputs: a type variable, or a type, for each.
        defaults: the numbers that attributes are where a node does not set them.
        allowed: the dtypes that each type variable may be.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    defaults: Mapping[str, int] = {}
    allowed: Mapping[str, frozenset[str]] = {}

    def kinds(self, number: int) -> list[str]:
        """Return the type variables of `number` inputs; empty texts without a description."""
        return _repeated(self.inputs, number)


def described(domain: str, kind: str, opsets: Mapping[str, int]) -> Described:
    """Return ONNX's description of an operator type, given the version of each domain's."""
    domain = "" if domain in STANDARD else domain
    return _from_package(domain, kind, opsets.get(domain, 1))


@cache
def _from_package(domain: str, kind: str, version: int) -> Described:
    from onnx import defs

    try:
        schema = defs.get_schema(kind, min(max(version, 1), 10_000), domain)
    except defs.SchemaError:
        return Described()
    return Described(
        tuple(each.type_str for each in schema.inputs),
        tuple(each.type_str for each in schema.outputs),
        {
            key: each.default_value.i
            for key, each in schema.attributes.items()
            if each.default_value.i
        },
        {
            each.type_param_str: frozenset(map(_dtype, each.allowed_type_strs))
            for each in schema.type_constraints
        },
    )


def result_dtypes(
    node: onnx.NodeProto,
    given: Sequence[str | None],
    described: Described,
    name: Callable[[int], str],
) -> list[str | None]:
    """Return a node's result dtypes, by ONNX's description of its operator; None where unknown.

    Args:
        name: returns the name of a dtype from ONNX's number for it.
    """
    results: list[str | None] = [None] * len(node.output)
    if not results or node.op_type in _WITH_GRAPHS:
        return results
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type in ("Constant", "ConstantOfShape") and node.domain in STANDARD:
        return [_constant(attributes, name), *results[1:]]
    if not described.outputs:
        if type_operations(node.domain, node.op_type):
            results[0] = next(
                (dtype for dtype in given if dtype is not None and "float" in dtype), None
            )
        return results
    bound: dict[str, str] = {}  # the first input decides where several do not agree
    for kind, dtype in zip(described.kinds(len(given)), given, strict=True):
        if dtype:
            bound.setdefault(kind, dtype)
    stated = attributes.get("to", attributes.get("dtype"))
    number = described.defaults.get("dtype") if stated is None else stated.i
    for position, kind in enumerate(_repeated(described.outputs, len(results))):
        if kind.startswith("tensor("):
            results[position] = _dtype(kind)
        elif position == 0 and number:
            results[position] = name(number)
        else:
            only = described.allowed.get(kind, frozenset())
            results[position] = next(iter(only)) if len(only) == 1 else bound.get(kind)
    return results


def refusal(
    node: onnx.NodeProto, given: Sequence[str | None], described: Described, version: int
) -> str:
    """Return the reason why ONNX forbids these floating inputs; empty where it does not."""
    if not described.inputs or node.op_type in _WITH_GRAPHS:
        return ""
    bound: dict[str, str] = {}
    for kind, dtype in zip(described.kinds(len(given)), given, strict=True):
        if dtype not in PRECISIONS:
            continue
        if dtype not in described.allowed.get(kind, (dtype,)):
            return f"operator set {version} has no {node.op_type} in {dtype}"
        if bound.setdefault(kind, dtype) != dtype:
            return "its inputs have several dtypes, which ONNX does not allow"
    return ""


def _repeated(kinds: Sequence[str], number: int) -> list[str]:
    """Return the types of `number` inputs or outputs; the last described type may repeat."""
    return [kinds[min(position, len(kinds) - 1)] if kinds else "" for position in range(number)]


def _constant(
    attributes: Mapping[str, onnx.AttributeProto], name: Callable[[int], str]
) -> str | None:
    if value := attributes.get("value"):
        return name(value.t.data_type)
    if "value_int" in attributes or "value_ints" in attributes:
        return "int64"
    if "value_string" in attributes or "value_strings" in attributes:
        return "string"
    return None if "sparse_value" in attributes else "float32"


def _dtype(kind: str) -> str:
    """Return the dtype in ONNX's name of a tensor type."""
    return dtype_name(kind.removeprefix("tensor(").removesuffix(")")) or kind
