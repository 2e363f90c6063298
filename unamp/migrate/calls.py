"""Rewrite a call of a framework's name as a call of plain unamp."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from typing import Any, NamedTuple

import libcst as cst

import unamp
from unamp.dtypes import FLOAT32, LOW_DTYPES, POLICY_DTYPES
from unamp.lists import is_word, operation_name
from unamp.migrate.literals import UNKNOWN, code, literal, static_dtype
from unamp.migrate.spellings import Form

_LISTS = ("custom_white_list", "custom_black_list")
_NATIVE = '"native"'


class Refused(Exception):
    """A call that cannot be moved, with advice on what to write by hand."""

    def __init__(self, why: str, hand: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.hand = hand


class Given(NamedTuple):
    """The arguments of a call, by their names in the old signature.

    Attributes:
        named: the index of each argument in the call, by its name.
        spread: the indices of ``**`` arguments.
    """

    named: Mapping[str, int]
    spread: tuple[int, ...]


class Written(NamedTuple):
    """One argument of the new call.

    Attributes:
        name: the argument's name; empty for ``**`` arguments.
        keyword: whether it is written by keyword.
        old: the index of the old argument whose place it takes; None for a new argument.
        code: the value's code, where it differs from the old argument's or the argument is new.
    """

    name: str
    keyword: bool
    old: int | None = None
    code: str = ""


def given(args: Sequence[cst.Arg], form: Form, name: str) -> Given:
    """Return the old signature's argument for each argument of a call.

    Raises:
        Refused: for an argument that the signature lacks or unamp refuses, and for ``*`` or ``**``
            that hides arguments.
    """
    named: dict[str, int] = {}
    spread: list[int] = []
    for index, arg in enumerate(args):
        if arg.star == "*" or (arg.star and not form.same_words):
            raise Refused(
                f"what {code(arg.value)} holds is not known here", "write its arguments out"
            )
        if arg.star:
            spread.append(index)
            continue
        if arg.keyword is not None:
            argument = arg.keyword.value
        elif index < len(form.by_position):
            argument = form.by_position[index]
        else:
            raise Refused(f"{name} takes no {len(args)} arguments", "look up what was meant")
        if argument not in form.arguments:
            raise Refused(f"{name} takes no argument {argument!r}", "look up what was meant")
        if argument in form.refused:
            raise Refused(form.refused[argument], "leave the argument out where that is right")
        named[argument] = index
    return Given(named, tuple(spread))


def check(args: Sequence[cst.Arg], form: Form, known: Given) -> None:
    """Check that unamp, plain or as a dialect, takes the arguments that the framework takes.

    Raises:
        Refused: for a dtype that is not low, a level that only MindSpore has, and an unknown
            operation.
    """
    dtype = UNKNOWN
    if "dtype" in known.named:
        dtype = static_dtype(args[known.named["dtype"]].value)
    if (
        isinstance(dtype, str)
        and dtype not in LOW_DTYPES
        and form.to != "unamp.auto_mixed_precision"
    ):
        enabled = _literal(args, known, "enabled", "enable")
        if enabled is not False and not (dtype == FLOAT32 and _is_on_cuda(args, form, known)):
            if dtype != FLOAT32:
                raise Refused(
                    f"{dtype} is no dtype of a policy",
                    "write enabled=False, and cast where you compute",
                )
            raise Refused(
                "float32 is no low dtype: the framework refuses it or switches the region off",
                "write enabled=False; or unamp.autocast(dtype='float32') for an island, "
                "which widens low inputs",
            )
    for name in _LISTS:
        entries = _literal(args, known, name)
        for entry in entries if isinstance(entries, (list, tuple, set)) else ():
            _check_operation(name, entry)
    level = _literal(args, known, "amp_level")
    if level == "auto":
        raise Refused(
            "the level 'auto' is MindSpore's own",
            "open `with unamp.autocast():` around the network's call",
        )


def plan(args: Sequence[cst.Arg], form: Form, known: Given) -> list[Written]:
    """Return the arguments of the new call."""
    order = positions(form.to)
    explicit = dict(form.explicit)
    changed: dict[str, str] = {}
    if form.by_device:
        _by_device(args, known, explicit, changed)
    if isinstance(level := _literal(args, known, "level"), str) and level != level.upper():
        changed["level"] = f'"{level.upper()}"'
    new = [Written(name, keyword=False, code=value) for name, value in form.lead.items()]
    names = {index: name for name, index in known.named.items()}
    for index, arg in enumerate(args):
        if index in known.spread:
            new.append(Written("", keyword=True, old=index))
            continue
        old = names[index]
        if old in form.dropped or (old == "dtype" and _is_taken_by_no_region(arg, form)):
            continue
        name = form.called.get(old, old)
        by_position = arg.keyword is None and len(new) < len(order) and order[len(new)] == name
        keyword = not by_position or any(each.keyword for each in new)
        new.append(Written(name, keyword, index, changed.get(old, "")))
    said = {each.name for each in new}
    new += [
        Written(name, keyword=True, code=value)
        for name, value in explicit.items()
        if name not in said
    ]
    return new


def with_arguments(call: cst.Call, to: str, arguments: Sequence[Written]) -> cst.Call:
    """Return a call with new arguments; it keeps comments, line breaks and a trailing comma."""
    old = call.args
    args: list[cst.Arg] = []
    for each in arguments:
        arg = old[each.old] if each.old is not None else cst.Arg(cst.Name("None"))
        value = cst.parse_expression(each.code) if each.code else arg.value
        arg = _named(arg.with_changes(value=value), each)
        args.append(_followed(arg, call, moves=each.old in (None, len(old) - 1)))
    if args:
        end = old[-1] if old else cst.Arg(cst.Name("None"))
        comma = end.comma if arguments[-1].old is not None else _without_comment(end.comma)
        args[-1] = args[-1].with_changes(comma=comma, whitespace_after_arg=end.whitespace_after_arg)
    return call.with_changes(func=cst.parse_expression(to), args=args)


def _followed(arg: cst.Arg, call: cst.Call, *, moves: bool) -> cst.Arg:
    """Return an argument with its comma; one that was last gets the separator of the others."""
    if not moves:
        return arg
    blank: cst.BaseParenthesizableWhitespace = cst.SimpleWhitespace(" ")
    if len(call.args) > 1 and isinstance(call.args[0].comma, cst.Comma):
        blank = call.args[0].comma.whitespace_after
    elif call.args and isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        blank = call.whitespace_before_args
    elif isinstance(arg.comma, cst.Comma) and isinstance(
        arg.comma.whitespace_after, cst.ParenthesizedWhitespace
    ):
        blank = arg.comma.whitespace_after
    if isinstance(blank, cst.ParenthesizedWhitespace):
        # the separator's line break, with this argument's own comment
        own = arg.comma.whitespace_after if isinstance(arg.comma, cst.Comma) else blank
        first = own.first_line if isinstance(own, cst.ParenthesizedWhitespace) else blank.first_line
        first = (
            first
            if own is not blank
            else first.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
        )
        blank = blank.with_changes(first_line=first, empty_lines=[])
    return arg.with_changes(
        comma=cst.Comma(whitespace_after=blank), whitespace_after_arg=cst.SimpleWhitespace("")
    )


def _without_comment(comma: cst.Comma | cst.MaybeSentinel) -> cst.Comma | cst.MaybeSentinel:
    if not isinstance(comma, cst.Comma) or not isinstance(
        comma.whitespace_after, cst.ParenthesizedWhitespace
    ):
        return comma
    blank = comma.whitespace_after
    first = blank.first_line.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
    return comma.with_changes(whitespace_after=blank.with_changes(first_line=first))


def _named(arg: cst.Arg, each: Written) -> cst.Arg:
    if not each.name or not each.keyword:
        return arg
    if arg.keyword is not None:
        return arg.with_changes(keyword=cst.Name(each.name))
    tight = cst.SimpleWhitespace("")
    equal = cst.AssignEqual(whitespace_before=tight, whitespace_after=tight)
    return arg.with_changes(keyword=cst.Name(each.name), equal=equal)


def _by_device(
    args: Sequence[cst.Arg], known: Given, explicit: dict[str, str], changed: dict[str, str]
) -> None:
    if "device_type" not in known.named and not known.spread:
        raise Refused(
            "it names no device, and torch takes it with one alone", "look up what was meant"
        )
    device = _literal(args, known, "device_type")
    if not isinstance(device, str):
        explicit["preset"] = _NATIVE  # the framework's own lists, whatever the device is
        return
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise Refused(f"{device!r} is a device of torch's alone: the region there is torch's own")
    explicit["preset"] = f'"torch-{kind}"'
    if kind != device:
        changed["device_type"] = f'"{kind}"'


def _is_on_cuda(args: Sequence[cst.Arg], form: Form, known: Given) -> bool:
    """Return whether a region is for CUDA: only there torch takes any dtype and casts to it."""
    device = (
        _literal(args, known, "device_type")
        if "device_type" in known.named
        else form.lead.get("device_type", "")
    )
    return isinstance(device, str) and device.strip('"').partition(":")[0] == "cuda"


def _is_taken_by_no_region(arg: cst.Arg, form: Form) -> bool:
    """Return whether an argument is a dtype that no region of the old signature takes.

    After `check`, only a region that is off still has such a dtype.
    """
    dtype = static_dtype(arg.value)
    return isinstance(dtype, str) and dtype not in (
        POLICY_DTYPES if form.to == "unamp.autocast" else LOW_DTYPES
    )


def _check_operation(name: str, entry: object) -> None:
    if isinstance(entry, str) and not is_word(entry):
        try:
            operation_name("list", entry, prefer="paddle")
        except ValueError:
            raise Refused(
                f"{name} names {entry!r}, which unamp does not know",
                "leave it out, or look for its name with `unamp ops`",
            ) from None


def _literal(args: Sequence[cst.Arg], known: Given, *names: str) -> Any:
    return next(
        (literal(args[known.named[name]].value) for name in names if name in known.named), UNKNOWN
    )


@cache
def positions(to: str) -> tuple[str, ...]:
    """Return the arguments that a callable of unamp takes by position."""
    made = reduce(getattr, to.split(".")[1:], unamp)
    parameters = inspect.signature(made).parameters.values()  # type: ignore[arg-type]
    return tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)
