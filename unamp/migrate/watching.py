"""Look at what names do not resolve: names in strings, settings in configurations, and casts by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from unamp.migrate.findings import Finding, Kind
from unamp.migrate.literals import literal, shortened_code
from unamp.migrate.names import Source, Use
from unamp.migrate.screening import DYNAMIC, leaves, names_a_path
from unamp.migrate.spellings import table, watch

__all__ = ["watched"]


def watched(source: Source, uses: Sequence[Use], frameworks: Collection[str]) -> list[tuple[cst.CSTNode, Finding]]:
    """Return the places to look at, and, in a file that spells mixed precision, the casts by hand."""
    resolved = {call for use in uses if (call := source.nodes.call_of(use.node)) is not None}
    resolved |= {call for use in source.ours if (call := source.nodes.call_of(use.node)) is not None}
    found = [*_strings(source, resolved, frameworks), *_keywords(source, resolved), *_attributes(source)]
    if any(use.row is not None for use in uses):
        found += _casts(source)
    return found


def _strings(
    source: Source, resolved: Collection[cst.Call], frameworks: Collection[str]
) -> Iterator[tuple[cst.CSTNode, Finding]]:
    for node in source.nodes.strings:
        value = node.evaluated_value
        if not isinstance(value, str) or "\n" in value or isinstance(source.nodes.parents.get(node), cst.Expr):
            continue
        base = Finding(0, 0, Kind.LOOK, shortened_code(node))
        dynamic = _is_in_getattr(node, source)
        if named := names_a_path(value):
            framework = table().framework_of(named)
            if framework in frameworks:
                why = "a name of mixed precision in a string: what imports or patches it goes on with the framework's own"
                yield node, base._replace(framework=framework, why=why, hand="write the name that stands there now")
        elif dynamic and value in leaves():
            why = f"{dynamic} takes a name of mixed precision as a string"
            yield node, base._replace(why=why, hand="import what is meant by name, and migrate again")
        elif value in watch().strings and not _is_argument(node, source, resolved):
            why = "a switch of mixed precision, or a setting in a configuration"
            yield node, base._replace(why=why, hand="follow it to the call that it ends up in")


def _keywords(source: Source, resolved: Collection[cst.Call]) -> Iterator[tuple[cst.CSTNode, Finding]]:
    for call in source.nodes.calls:
        for arg in call.args:
            if arg.keyword is not None and arg.keyword.value in watch().keywords and call not in resolved:
                why = f"{arg.keyword.value}= goes to a call that no table has"
                hand = "follow it to the call that it ends up in"
                yield arg, Finding(0, 0, Kind.LOOK, shortened_code(arg), why=why, hand=hand)


def _attributes(source: Source) -> Iterator[tuple[cst.CSTNode, Finding]]:
    if not any(table().framework_of(binding.imported) == "paddle" for binding in source.bindings):
        return
    for node in source.nodes.stored:
        if node.attr.value in watch().attributes:
            why = "a DistributedStrategy of Paddle's that is set so casts by itself"
            yield node, Finding(0, 0, Kind.LOOK, shortened_code(node), "paddle", why=why, hand="open a region instead")


def _casts(source: Source) -> Iterator[tuple[cst.CSTNode, Finding]]:
    for call in source.nodes.calls:
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        by_name = method in watch().casts and not call.args
        if by_name or (method in watch().takers and any(_names_low_dtype(arg.value) for arg in call.args)):
            why = "a cast by hand: a region casts what goes into operations, and leaves this as it is"
            hand = "leave it out inside a region, unless the memory is what it is for; unamp.decorate casts parameters"
            yield call, Finding(0, 0, Kind.HINT, shortened_code(call), why=why, hand=hand)


def _names_low_dtype(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Attribute):
        return node.attr.value in watch().dtypes
    value = literal(node)
    return isinstance(value, str) and value.rpartition(".")[2] in watch().dtypes


def _is_in_getattr(node: cst.SimpleString, source: Source) -> str:
    arg = source.nodes.parents.get(node)
    call = source.nodes.parents.get(arg) if isinstance(arg, cst.Arg) else None
    if isinstance(call, cst.Call) and isinstance(call.func, cst.Name) and call.func.value in DYNAMIC:
        return call.func.value
    return ""


def _is_argument(node: cst.CSTNode, source: Source, resolved: Collection[cst.Call]) -> bool:
    """Return whether a string is in an argument of a call that was resolved."""
    return any(isinstance(each, cst.Call) and each in resolved for each in source.nodes.around(node))
