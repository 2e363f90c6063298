"""Decide the new form of each use of a framework's name: plain unamp, a dialect, or unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import libcst as cst

from unamp.migrate.calls import Given, Refused, Written, check, given, plan
from unamp.migrate.literals import UNKNOWN, code, literal
from unamp.migrate.names import Source, Use, targets_of
from unamp.migrate.spellings import Form


class Target(Enum):
    """The two kinds of code to write: a dialect's import, or plain unamp."""

    DIALECTS = "dialects"
    UNAMP = "unamp"


class Outcome(Enum):
    """The outcomes of a use; a use that is `SAME` moves only with its import."""

    SAME = "same"
    PLAIN = "plain"
    DIALECT = "dialect"
    STAYS = "stays"


class Decision(NamedTuple):
    """The decision about a use.

    Attributes:
        arguments: the arguments of the call in plain unamp; None where only the name is replaced.
        why, hand: the reason where the use stays, or where it becomes a dialect's although plain
            unamp was asked for; and what to do by hand.
    """

    outcome: Outcome
    arguments: Sequence[Written] | None = None
    why: str = ""
    hand: str = ""


def is_used(use: Use, source: Source) -> bool:
    """Return whether a use is mixed precision; for some names, certain arguments decide."""
    row = use.row
    if row is None or not (row.only_with or row.only_with_string):
        return True
    call = source.nodes.call_of(use.node)
    if call is None:
        return False
    if row.only_with_string:
        return any(row.only_with_string in code(arg) for arg in call.args)
    return any(arg.keyword is not None and arg.keyword.value in row.only_with for arg in call.args)


def decide(use: Use, source: Source, target: Target) -> Decision:
    """Return the decision on a use alone; `settling` considers its imports later."""
    row = use.row
    assert row is not None
    try:
        _check_place(use, source)
        _check_arguments(use, source)
        if row.needs and row.needs not in code(source.module):
            raise Refused(row.why, row.hand)
    except Refused as refused:
        return Decision(Outcome.STAYS, why=refused.why, hand=refused.hand or row.hand)
    if row.same:
        return Decision(Outcome.SAME)
    why = ""
    if target is Target.UNAMP and row.form is not None:
        try:
            return Decision(Outcome.PLAIN, plain_arguments(use, source))
        except Refused as refused:
            why = refused.why
    if not row.dialect:
        return Decision(Outcome.STAYS, why=why or row.why, hand=row.hand)
    call = source.nodes.call_of(use.node)
    if (
        row.form is not None
        and row.form.to == "unamp.amp_guard"
        and "use_promote" not in row.form.old
        and call is not None
    ):
        level = _argument(call, row.form, "level").strip("'\"").upper()
        if level not in ("", "O0", "OD", "O1") or any(arg.star for arg in call.args):
            promotes = "at O2 its dialect promotes, as Paddle 3 does, and fluid did not"
            return Decision(
                Outcome.STAYS, why=promotes, hand="take unamp.amp_guard, which does not either"
            )
    return Decision(Outcome.DIALECT, why=why)


def plain_arguments(use: Use, source: Source) -> Sequence[Written] | None:
    """Return the arguments of the call in plain unamp; None where only the name is replaced.

    Raises:
        Refused: where plain unamp has no equivalent.
    """
    row = use.row
    assert row is not None
    if row.form is None:
        raise Refused("plain unamp has no such call")
    if use.several:
        raise Refused("the name can stand for something else here: it is bound in several ways")
    call = source.nodes.call_of(use.node)
    if call is None:
        if row.form.value:
            return None
        raise Refused("it is handed on uncalled, so its arguments are not seen")
    if row.form.in_place and isinstance(source.nodes.parents.get(call), cst.Expr):
        raise Refused(
            "it changes the network in place, as its dialect does, "
            "and plain unamp returns another one"
        )
    _check_result(call, row.form, source)
    known = given(call.args, row.form, row.name)
    new = plan(call.args, row.form, known)
    if row.form.by_device:
        count = sum(each.old is not None for each in new)
        new[count:count] = inherited(call, row.form, new, source)
    return new + _excluded(call, row.form, known, source)


def _check_place(use: Use, source: Source) -> None:
    parent = source.nodes.parents.get(use.node)
    above = source.nodes.parents.get(parent) if parent is not None else None
    if use.several and any(binding.own for binding in use.bindings):
        raise Refused(
            "a module of the project's own binds it in several ways",
            "migrate that module --to dialects",
        )
    if use.rest:
        raise Refused("an attribute of it is used, which may be the framework's own")
    if isinstance(parent, cst.Arg) and isinstance(above, cst.ClassDef):
        raise Refused(
            "a class is derived from it, which may rest on the framework's own attributes",
            "derive it by hand",
        )
    if isinstance(parent, (cst.AssignTarget, cst.AugAssign, cst.Del)) and use.node is not getattr(
        parent, "value", None
    ):
        raise Refused(
            "it is replaced or removed in the framework", "patch what the migrated code calls"
        )


def _check_arguments(use: Use, source: Source) -> None:
    """Raise Refused where unamp would refuse the call in its dialect, too."""
    call, row = source.nodes.call_of(use.node), use.row
    if call is None or row is None or row.form is None:
        return
    try:
        known = given(call.args, row.form, row.name)
    except Refused:  # a dialect takes the arguments unchanged
        return
    check(call.args, row.form, known)


def _check_result(call: cst.Call, form: Form, source: Source) -> None:
    """Raise Refused where the code uses its scaler in a way that plain unamp does not support."""
    parent = source.nodes.parents.get(call)
    if not form.lacks or not isinstance(parent, (cst.Assign, cst.AnnAssign)):
        return
    names = {code(target) for target in targets_of(parent)}
    for other in source.nodes.calls:
        method = other.func
        if not isinstance(method, cst.Attribute) or code(method.value) not in names:
            continue
        if method.attr.value in form.lacks:
            raise Refused(f"its method {method.attr.value} is the dialect's alone")
        if method.attr.value == "step" and not isinstance(
            source.nodes.parents.get(other), cst.Expr
        ):
            raise Refused(
                "what its step returns is used: in plain unamp that is whether the step was taken"
            )


def inherited(call: cst.Call, form: Form, new: Sequence[Written], source: Source) -> list[Written]:
    """Return the dtype of the outer region, which torch's regions without a dtype inherit."""
    said = {each.name: each for each in new}
    enabled = said.get("enabled")
    off = (
        enabled is not None
        and enabled.old is not None
        and literal(call.args[enabled.old].value) is False
    )
    if "dtype" in said or "" in said or off:
        return []
    own = _device(call, form)
    for use in source.uses:
        around, outer = source.nodes.call_of(use.node), use.row.form if use.row else None
        if (
            around is None
            or around is call
            or outer is None
            or outer.to != form.to
            or _device(around, outer) != own
        ):
            continue
        if _is_within(call, around, source) and (dtype := _argument(around, outer, "dtype")):
            return [Written("dtype", keyword=True, code=dtype)]
    return []


def _device(call: cst.Call, form: Form) -> str:
    """Return the device of a call of torch's autocast, as written."""
    return form.lead.get("device_type") or _argument(call, form, "device_type").replace("'", '"')


def _argument(call: cst.Call, form: Form, name: str) -> str:
    """Return an argument as written; empty where it is missing."""
    for index, arg in enumerate(call.args):
        keyword = arg.keyword.value if arg.keyword is not None else ""
        if not arg.star and name == (
            keyword or (form.by_position[index] if index < len(form.by_position) else "")
        ):
            return code(arg.value)
    return ""


def _is_within(call: cst.Call, around: cst.Call, source: Source) -> bool:
    """Return whether a call is in the body of another call's `with`, in the same function."""
    for node in source.nodes.around(call):
        if isinstance(node, (cst.FunctionDef, cst.Lambda)):
            return False
        if isinstance(node, cst.With) and any(item.item is around for item in node.items):
            return not any(item.item is call for item in node.items)
    return False


def _excluded(call: cst.Call, form: Form, known: Given, source: Source) -> list[Written]:
    """Return the norms that Paddle, but not unamp, keeps in float32 at O2 in float16."""
    if not form.excluded_norms:
        return []

    def said(name: str, usual: str) -> object:
        return literal(call.args[known.named[name]].value) if name in known.named else usual

    level, dtype = said("level", "O1"), said("dtype", "float16")
    if (isinstance(level, str) and level.upper() != "O2") or dtype == "bfloat16":
        return []
    if dtype is UNKNOWN:
        raise Refused("which norms stay in float32 depends on the dtype, which only a run knows")
    if "excluded_layers" in known.named:
        raise Refused(
            "to excluded_layers Paddle adds its norms, which plain unamp would have to be told"
        )
    roots = [
        b.bound
        for b in source.bindings
        if isinstance(b.statement, cst.Import) and b.imported.partition(".")[0] == "paddle"
    ]
    paddle = next((bound for bound in roots if bound == "paddle"), None) or next(
        (b.bound for b in source.bindings if b.imported == "paddle"), None
    )
    if paddle is None:
        raise Refused(
            "Paddle keeps norms in float32 that plain unamp has to be told, "
            "and the file does not import paddle"
        )
    layers = ", ".join(f"{paddle}.{layer}" for layer in form.excluded_norms)
    return [Written("excluded_layers", keyword=True, code=f"[{layers}]")]
