"""Find mixed precision that is no framework's name: strings, settings, and casts by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import libcst as cst
from libcst.helpers import get_full_name_for_node

from unamp.dtypes import FLOAT32
from unamp.migrate.findings import Finding, Kind
from unamp.migrate.literals import UNKNOWN, literal, shortened_code, static_dtype
from unamp.migrate.names import Source, Use
from unamp.migrate.screening import DYNAMIC, leaves, names_a_path
from unamp.migrate.settings import is_section, section_words, setting_of
from unamp.migrate.spellings import table, watch


def watched(source: Source, uses: Sequence[Use], frameworks: Collection[str]) -> list[Finding]:
    """Return the places to look at: settings, names in strings, casts by hand."""
    calls = (source.nodes.call_of(use.node) for use in (*uses, *source.ours))
    resolved = {call for call in calls if call is not None}
    found = [
        *_strings(source, resolved, frameworks),
        *_keywords(source, resolved),
        *_attributes(source),
    ]
    owners = {table().framework_of(root) for root in source.roots}
    if not owners.isdisjoint(frameworks):
        found += _casts(source, in_regions=any(use.row is not None for use in uses))
    return [*found, *_settings(source, resolved)]


def _settings(source: Source, resolved: Collection[cst.Call]) -> Iterator[Finding]:
    for node, name, value in source.nodes.named:
        parent = source.nodes.parents.get(node)
        callee = ""
        if isinstance(node, cst.Arg) and isinstance(parent, cst.Call):
            if parent in resolved:
                continue
            callee = (get_full_name_for_node(parent.func) or "?").rpartition(".")[2]
        known, said = literal(value), shortened_code(node).rstrip(",")
        if isinstance(node, cst.DictElement) and is_section(
            name, known if known is not UNKNOWN else _keys(value)
        ):
            yield source.finding(Kind.LOOK, node, said=said, **section_words())
        elif setting := setting_of(name, known, callee, source.roots, low=_names_low_dtype(value)):
            yield source.finding(Kind.LOOK, node, said=said, why=setting.why, hand=setting.hand)


def _keys(node: cst.BaseExpression) -> dict[str, object]:
    """Return the keys of a dictionary as text, each with an unknown value."""
    elements = node.elements if isinstance(node, cst.Dict) else ()
    keys = (each.key for each in elements if isinstance(each, cst.DictElement))
    return {str(literal(key)): UNKNOWN for key in keys}


def _strings(
    source: Source, resolved: Collection[cst.Call], frameworks: Collection[str]
) -> Iterator[Finding]:
    for node in source.nodes.strings:
        value = node.evaluated_value
        if (
            not isinstance(value, str)
            or "\n" in value
            or isinstance(source.nodes.parents.get(node), cst.Expr)
        ):
            continue
        dynamic = _is_in_getattr(node, source)
        if named := names_a_path(value):
            framework = table().framework_of(named)
            if framework in frameworks:
                why = (
                    "a name of mixed precision in a string: "
                    "what imports or patches it goes on with the framework's own"
                )
                yield source.finding(
                    Kind.LOOK, node, framework, why=why, hand="write the name that stands there now"
                )
        elif dynamic and value in leaves():
            why = f"{dynamic} takes a name of mixed precision as a string"
            yield source.finding(
                Kind.LOOK, node, why=why, hand="import what is meant by name, and migrate again"
            )
        elif value in watch().strings and not _is_argument(node, source, resolved):
            why = "a switch of mixed precision, or a setting in a configuration"
            said = watch().strings_of.get(
                value, {"why": why, "hand": "follow it to the call that it ends up in"}
            )
            yield source.finding(Kind.LOOK, node, why=said["why"], hand=said["hand"])


def _keywords(source: Source, resolved: Collection[cst.Call]) -> Iterator[Finding]:
    for call in source.nodes.calls:
        for arg in call.args:
            if (
                arg.keyword is not None
                and arg.keyword.value in watch().keywords
                and call not in resolved
            ):
                why = f"{arg.keyword.value}= goes to a call that no table has"
                hand = "follow it to the call that it ends up in"
                yield source.finding(Kind.LOOK, arg, why=why, hand=hand)


def _attributes(source: Source) -> Iterator[Finding]:
    if not any(table().framework_of(binding.imported) == "paddle" for binding in source.bindings):
        return
    for node in source.nodes.stored:
        if node.attr.value in watch().attributes:
            why = "a DistributedStrategy of Paddle's that is set so casts by itself"
            yield source.finding(Kind.LOOK, node, "paddle", why=why, hand="open a region instead")


def _casts(source: Source, *, in_regions: bool) -> Iterator[Finding]:
    why = "a cast by hand: a region casts what goes into operations, and leaves this as it is"
    hand = (
        "leave it out inside a region, unless the memory is what it is for; "
        "unamp.decorate casts parameters"
    )
    if not in_regions:
        why = "a cast by hand, and no region in this file"
        hand = (
            "open a region around what computes, and leave the cast out; "
            "unamp.decorate casts parameters, with master weights"
        )
    for call in source.nodes.calls:
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if method == watch().cell and "mindspore" in source.roots and call.args:
            yield _of_cell(call, source)
        elif (method in watch().casts and not call.args) or (
            method in watch().takers and any(_names_low_dtype(arg.value) for arg in call.args)
        ):
            yield source.finding(Kind.HINT, call, why=why, hand=hand)


def _of_cell(call: cst.Call, source: Source) -> Finding:
    """Return the finding for MindSpore's `cell.to_float(dtype)`."""
    dtype = static_dtype(call.args[0].value)
    rule = (
        '"float32"'
        if dtype == FLOAT32
        else f'unamp.Policy("O3", "{dtype}")'
        if isinstance(dtype, str)
        else "a policy"
    )
    why = "the cell casts what goes into it, wherever it is called"
    hand = f"give the cell's name a rule: unamp.layer_policies(network, {{name: {rule}}})"
    return source.finding(Kind.BY_HAND, call, "mindspore", why=why, hand=hand)


def _names_low_dtype(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Attribute):
        return node.attr.value in watch().dtypes
    value = literal(node)
    return isinstance(value, str) and value.rpartition(".")[2] in watch().dtypes


def _is_in_getattr(node: cst.SimpleString, source: Source) -> str:
    arg = source.nodes.parents.get(node)
    call = source.nodes.parents.get(arg) if isinstance(arg, cst.Arg) else None
    if (
        isinstance(call, cst.Call)
        and isinstance(call.func, cst.Name)
        and call.func.value in DYNAMIC
    ):
        return call.func.value
    return ""


def _is_argument(node: cst.CSTNode, source: Source, resolved: Collection[cst.Call]) -> bool:
    """Return whether a string is in an argument of a call that was resolved already."""
    return any(
        isinstance(each, cst.Call) and each in resolved for each in source.nodes.around(node)
    )
