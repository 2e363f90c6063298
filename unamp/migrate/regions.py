"""Tell the policy of each region of a file, as far as the source shows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import libcst as cst

import unamp
from unamp.migrate.calls import Refused, given, plan, positions
from unamp.migrate.deciding import inherited
from unamp.migrate.findings import RegionPolicy
from unamp.migrate.literals import UNKNOWN, code, literal, shortened_code, static_dtype
from unamp.migrate.names import Source, Use
from unamp.migrate.spellings import Form, Row, table
from unamp.typing import Level, PresetName

_DIALECTS = "unamp.dialects."
_REGIONS = ("unamp.autocast", "unamp.auto_cast", "unamp.amp_guard")
_NETWORKS = "unamp.auto_mixed_precision"

#: The policy of a call, the arguments that only a run knows, and the scope of the policy.
_Told = tuple[unamp.Policy, dict[str, str], str]


_KERAS: dict[str, tuple[Level, str]] = {
    "mixed_float16": ("O2", "float16"),
    "mixed_bfloat16": ("O2", "bfloat16"),
    "float16": ("O3", "float16"),
    "bfloat16": ("O3", "bfloat16"),
    "float32": ("O0", "float16"),
    "float64": ("O0", "float16"),
}

#: The arguments of MindSpore's calls by position, as far as the level.
_OF_MODEL = (
    "network", "loss_fn", "optimizer", "metrics", "eval_network", "eval_indexes", "amp_level",
)  # fmt: skip
_OF_TRAINING = ("network", "optimizer", "loss_fn", "level")

#: apex's levels; O4 and O5 are O1 and O2 in bfloat16.
_APEX: dict[str, tuple[Level, str]] = {"O4": ("O1", "bfloat16"), "O5": ("O2", "bfloat16")}


class _Values:
    """The arguments of a call by name: their values, or `unknown` where only a run knows them."""

    def __init__(self, expressions: Mapping[str, cst.CSTNode]) -> None:
        self._expressions = expressions
        self.unknown: dict[str, str] = {}

    def get(self, name: str, usual: object) -> Any:
        """Return an argument's value, or `usual` where it is missing or only a run knows it."""
        if (node := self._expressions.get(name)) is None:
            return usual
        value = static_dtype(node) if name == "dtype" else literal(node)
        if value is UNKNOWN:
            self.unknown[name] = shortened_code(node)
            return usual
        return value

    def known(self) -> dict[str, Any]:
        """Return the arguments that are known."""
        values = {name: self.get(name, UNKNOWN) for name in self._expressions}
        return {name: value for name, value in values.items() if value is not UNKNOWN}


def region_policies(source: Source, frameworks: Collection[str]) -> list[RegionPolicy]:
    """Return the policy of each call that opens a region, or makes a network under a policy."""
    found: list[RegionPolicy] = []
    for use in (*source.uses, *source.ours):
        call = source.nodes.call_of(use.node)
        row = use.row or table().rows.get(use.name.removeprefix(_DIALECTS))
        if call is None or use.rest:
            continue
        framework = row.framework if row is not None else "unamp"
        if row is not None and framework not in frameworks:
            continue
        told = _told(use.name, row, call, source)
        if told is not None:
            policy, unknown, where = told
            line = source.start_of(call).line
            found.append(
                RegionPolicy(
                    line, shortened_code(call), framework, policy.to_data(), unknown, where
                )
            )
    return sorted(found, key=lambda each: each.line)


def region_words(use: Use, source: Source) -> dict[str, str]:
    """Return the texts `region` and `more`: advice to write by hand for a call that cannot move."""
    call = source.nodes.call_of(use.node)
    told = _told(use.name, use.row, call, source) if call is not None else None
    policy = told[0] if told is not None else unamp.Policy()
    if use.row is not None and use.row.framework == "paddle":
        words = [
            f"{name}={value!r}"
            for name, value in (("level", policy.level), ("dtype", policy.dtype))
        ]
        return {
            "region": (
                f"`with unamp.auto_cast({', '.join(words)}, use_promote={policy.promote}):`"
            ).replace("'", '"'),
            "more": "",
        }
    level = "" if policy.level == "O1" else f', level="{policy.level}"'
    region = f'`with unamp.autocast("cuda", "{policy.dtype}"{level}, preset="{policy.preset}"):`'
    more = ""
    if policy.level in ("O2", "O3"):
        decorated = (
            f'unamp.decorate(model, optimizer, level="{policy.level}", dtype="{policy.dtype}")'
        )
        more = f"; before that, `model, optimizer = {decorated}`"
    scale = _values(call, ()).get("loss_scale", None) if call is not None else None
    if isinstance(scale, (int, float)):
        more += f"; loss_scale={scale} is `unamp.GradScaler({scale}, dynamic=False)`"
    return {"region": region, "more": more}


def _told(name: str, row: Row | None, call: cst.Call, source: Source) -> _Told | None:
    """Return the policy of a call; None where the call opens no region."""
    form = row.form if row is not None else None
    to = form.to if form is not None else name
    reader = _READERS.get(row.policy) if row is not None else None
    if reader is None and to not in (*_REGIONS, _NETWORKS):
        return None
    try:
        if reader is not None:
            return reader(call)
        values = (
            _values(call, positions(to))
            if form is None
            else _of_form(call, form, name.removeprefix(_DIALECTS), source)
        )
        return _of_network(values) if to == _NETWORKS else _of_region(to, values)
    except (Refused, ValueError, TypeError) as error:
        return unamp.Policy(enabled=False), {"policy": f"not told: {error}"}, ""


def _values(call: cst.Call, order: tuple[str, ...]) -> _Values:
    found: dict[str, cst.CSTNode] = {}
    for index, arg in enumerate(call.args):
        if arg.star:
            found[f"{arg.star}{code(arg.value)}"] = arg.value
        elif arg.keyword is not None:
            found[arg.keyword.value] = arg.value
        elif index < len(order):
            found[order[index]] = arg.value
    return _Values(found)


def _of_form(call: cst.Call, form: Form, name: str, source: Source) -> _Values:
    """Return the arguments of a call, as the call in plain unamp has them."""
    new = plan(call.args, form, given(call.args, form, name))
    new += inherited(call, form, new, source) if form.by_device else []
    return _Values(
        {
            each.name or code(call.args[each.old or 0]): cst.parse_expression(each.code)
            if each.code
            else call.args[each.old or 0].value
            for each in new
        }
    )


def _of_region(to: str, values: _Values) -> _Told:
    known = {
        name: value
        for name, value in values.known().items()
        if name != "framework" and not name.startswith("*")
    }
    made: Any = getattr(unamp, to.removeprefix("unamp."))
    names_none = (
        all(known.get(name) is None for name in ("device_type", "dtype"))
        and "dtype" not in values.unknown
    )
    if to == "unamp.autocast" and names_none:
        values.unknown["dtype"] = "float16 on a GPU, bfloat16 on a CPU"
        known["dtype"] = "float16"
    return made(**known).policy, values.unknown, ""


def _of_network(values: _Values) -> _Told:
    level, dtype = values.get("amp_level", "O0"), values.get("dtype", "float16")
    preset = values.get("preset", "mindspore")
    return _network_policy(level, dtype, preset), values.unknown, "the network that it returns"


def _network_policy(level: Any, dtype: str, preset: PresetName = "mindspore") -> unamp.Policy:
    return unamp.Policy(
        "O1" if level == "auto" else level, dtype, preset=preset, widen_results=level == "O1"
    )


def _of_mindspore(call: cst.Call, order: tuple[str, ...], where: str) -> _Told:
    """Return the policy of a call of MindSpore's whose last argument in `order` is the level."""
    values = _values(call, order)
    return _network_policy(values.get(order[-1], "O0"), "float16"), values.unknown, where


def _of_paddle_program(call: cst.Call) -> _Told:
    values = _values(call, ("optimizer", "amp_lists", "level", "dtype"))
    level, dtype = values.get("level", "O1"), values.get("dtype", "float16")
    values.get("amp_lists", None)
    policy = unamp.Policy(
        level, dtype, preset="paddle", promote=bool(values.get("use_promote", False))
    )
    return policy, values.unknown, "the static program"


def _of_apex(call: cst.Call) -> _Told:
    values = _values(call, ("models", "optimizers", "enabled", "opt_level"))
    stated = values.get("opt_level", "O1")
    level, dtype = _APEX.get(stated, (stated, "float16"))
    policy = unamp.Policy(level, dtype, preset="apex", enabled=bool(values.get("enabled", True)))
    return policy, values.unknown, "the rest of the process"


def _of_keras(call: cst.Call) -> _Told:
    values = _values(call, ("policy",))
    named = values.get("policy", "float32")
    level, dtype = _KERAS.get(str(named), ("O0", "float16"))
    where = "Keras' layers, which cast their inputs; this is the policy nearest to it"
    return unamp.Policy(level, dtype, preset="tensorflow"), values.unknown, where


_READERS = {
    "apex": _of_apex,
    "disabled": lambda call: (unamp.Policy(enabled=False), {}, ""),
    "grappler": lambda call: (
        unamp.Policy("O1", "float16", preset="tensorflow"),
        {},
        "every graph of the process",
    ),
    "keras": _of_keras,
    "mindspore": lambda call: _of_network(_values(call, positions(_NETWORKS))),
    "mindspore-model": lambda call: _of_mindspore(call, _OF_MODEL, "the model's network"),
    "mindspore-train": lambda call: _of_mindspore(call, _OF_TRAINING, "the network in training"),
    "paddle": _of_paddle_program,
}
