"""One mixed-precision policy, as a value.

A `Policy` says for every operation of the vocabulary which precision it runs in. It holds no state
and knows no framework: adapters ask `Policy.decide` and carry the answer out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from unamp._argument_names import also_called
from unamp.dtypes import FLOAT32, policy_dtype
from unamp.errors import AmpWarning, unknown
from unamp.lists import EVERYTHING, operation_name, read, words
from unamp.presets import Preset, as_of, check_preset
from unamp.presets import preset as load_preset
from unamp.typing import DtypeLike, DtypeName, Level, OperationLike, OperationsLike, PresetName
from unamp.vocabulary import Operation, vocabulary

#: The number of policies whose rules, plans and regions a process keeps: some 20 KiB for each and
#: framework. With more policies in turn, opening a region takes milliseconds each time.
KEPT_POLICIES = 2048

#: The levels, and what each does with the operations that no list names.
LEVELS: dict[Level, str] = {
    "O0": "nothing is touched",
    "OD": "the allow list runs low, everything else in float32",
    "O1": (
        "the allow list runs low, the deny list in float32, "
        "the rest in the widest dtype of its inputs"
    ),
    "O2": "everything runs low but the deny list",
    "O3": "everything runs low but your own deny list",
}


class Rule(Enum):
    """The treatment of an operation's inputs that have a dtype of `unamp.dtypes.ELIGIBLE`."""

    UNTOUCHED = "untouched"
    LOW = "low"
    FP32 = "float32"
    WIDEST = "widest"
    NARROWEST = "narrowest"
    BANNED = "banned"

    def __repr__(self) -> str:
        return self.name

    @property
    def leaves_agreeing(self) -> bool:
        """Return whether inputs of one dtype keep it."""
        return self in (Rule.UNTOUCHED, Rule.WIDEST, Rule.NARROWEST)


class Decision(NamedTuple):
    """A rule, and where it comes from in words for a person.

    Attributes:
        op: the operation's canonical name.
        rule: the rule.
        origin: the list or the level that decided.
        advice: what to use in place of a banned operation.
    """

    op: str
    rule: Rule
    origin: str
    advice: str = ""


class Policy:
    """A rule for every operation: the precision that it runs in.

    A policy is immutable, hashable, equal by value, and it pickles.

    Args:
        level: ``"O0"``, ``"OD"``, ``"O1"``, ``"O2"`` or ``"O3"``; see `LEVELS`. The names are
            NVIDIA apex's and Paddle's.
        dtype: the dtype in which the allow list computes, as a string or any framework's dtype
            object: a low precision, ``"float16"`` or ``"bfloat16"``; or ``"float32"``, where
            nothing is cast down: operations that would run low widen their inputs and run in
            float32, at O2 and O3 too.
        allow: operations that run in the low dtype, whatever the preset says. Canonical names, any
            framework's spelling, or the framework's own function, layer class or primitive; words
            for many operations (``"group:norm"``, ``"linalg_*"``, ``"*"``; see `unamp.lists`). A
            single entry may stand alone. ``"*"`` is level O3.
        deny: operations that run in float32, likewise. ``"*"`` is level OD without a preset's
            lists: everything runs in float32 but what `allow` names. An operation that one list
            names, and the other covers by a word for many, is on the list that names it.
        preset: the base lists; see `unamp.presets.PRESETS`. ``"torch-cuda@2.11"`` is the lists of
            that version of the framework; a name without a version is the newest.
        enabled: False is a policy that touches nothing.
        promote: at O2, operations on no list run in the widest dtype of their inputs (Paddle's
            ``use_promote``).
        widen_results: the result of every operation that ran low is cast back to float32
            (MindSpore's O1).
        cache: within the outermost region a float32 parameter is cast once.

    Raises:
        ValueError: for an unknown level, dtype, preset or operation, for an operation in both
            lists, and for a cast or a move in one (``cast``, ``bitcast``, ``cpu``), whose call
            states the dtype or device. A word for many leaves those out.
        TypeError: for an argument of the wrong type.
    """

    # Not a dataclass: importing `dataclasses` alone would take a third of the time that
    # `import unamp` takes.

    level: Level
    dtype: DtypeName
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    preset: PresetName
    enabled: bool
    promote: bool
    widen_results: bool
    cache: bool
    _values: tuple[Any, ...]

    @also_called(
        "Policy",
        amp_level="level",
        opt_level="level",
        white_list="allow",
        black_list="deny",
        custom_white_list="allow",
        custom_black_list="deny",
        use_promote="promote",
        enable="enabled",
        cache_enabled="cache",
    )
    def __init__(
        self,
        level: Level = "O1",
        dtype: DtypeLike = "float16",
        allow: OperationsLike = (),
        deny: OperationsLike = (),
        preset: PresetName = "unamp",
        enabled: bool = True,
        promote: bool = False,
        widen_results: bool = False,
        cache: bool = True,
    ) -> None:
        if not isinstance(level, str):
            raise TypeError(
                f"level must be a string, not {type(level).__name__}; valid: {', '.join(LEVELS)}"
            )
        if level not in LEVELS:
            raise ValueError(unknown("level", level, LEVELS))
        for flag, value in (
            ("enabled", enabled),
            ("promote", promote),
            ("widen_results", widen_results),
            ("cache", cache),
        ):
            if not isinstance(value, bool):
                raise TypeError(f"{flag} must be True or False, not {type(value).__name__}")
        check_preset(preset)
        allowing, denying = read("allow", allow), read("deny", deny)
        if allowing.everything and denying.everything:
            raise ValueError(
                "allow and deny are both '*'; every operation can be in one of them only"
            )
        allowed = allowing.named | (allowing.meant - denying.named)
        denied = denying.named | (denying.meant - allowing.named)
        if both := sorted(allowed & denied):
            raise ValueError(
                f"in allow and in deny: {', '.join(both)}; an operation can be in one of them only"
            )
        if (allowed or denied or allowing.everything or denying.everything) and load_preset(
            preset
        ).delegates:
            raise ValueError(
                f"preset {preset!r} is the framework's own AMP, which takes no lists; "
                "start from a preset with lists (for instance 'unamp' or 'torch-cuda') "
                "to use allow and deny"
            )
        if level != "O0" and denying.everything:
            level, preset, denied = "OD", _EMPTY, frozenset()
        elif level != "O0" and allowing.everything:
            level, allowed = "O3", frozenset()
        named = tuple(sorted(allowed)), tuple(sorted(denied))
        values = (
            level,
            policy_dtype(dtype),
            *named,
            preset,
            enabled,
            promote,
            widen_results,
            cache,
        )
        for name, stated in zip((*_ARGUMENTS, "_values"), (*values, values), strict=True):
            object.__setattr__(self, name, stated)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(
            f"a policy does not change; make another one with .replace({name}=...)"
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a policy does not change")

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Not computed in `__init__`: torch.compile traces that, and in PyTorch 2.11 it cannot
        # compute the hash of a tuple.
        return hash(self._values)

    def __reduce__(self) -> tuple[object, ...]:
        # The cached hash depends on the process's hash seed and must not travel.
        return type(self), self._values

    def __repr__(self) -> str:
        changed = [f"{name}={value!r}" for name, value in self._said().items()]
        return f"Policy({', '.join([repr(self.level), repr(self.dtype), *changed])})"

    def _said(self) -> dict[str, object]:
        """Return the arguments besides level and dtype that are not the default, lists in words."""
        fields = list(zip(_ARGUMENTS, self._values, Policy()._values, strict=True))
        said = {name: value for name, value, usual in fields[2:] if value != usual}
        said |= {name: words(said[name]) for name in ("allow", "deny") if name in said}
        if self._denies_everything:
            del said["preset"]
            said["deny"] = EVERYTHING
        return said

    def stated(self) -> dict[str, Any]:
        """Return the arguments a person would write for an equal policy, in the fewest words."""
        said = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self._said().items()
        }
        if self._denies_everything:
            said["deny"] = [EVERYTHING]
        return {"level": self.level, "dtype": self.dtype, **said}

    def to_toml(self) -> str:
        """Return the policy as the text of a `precision.toml`, which `from_toml` reads.

        See `unamp.Precision` for more.
        """
        from unamp import _precision_toml  # slow to import, and `import unamp` must stay cheap
        from unamp.made_with import lists_of

        return _precision_toml.dump(_precision_toml.Contents(self.stated(), lists=lists_of([self])))

    @classmethod
    def from_toml(cls, text: str) -> Policy:
        """Return the policy in the text of a `precision.toml`.

        Warn where its preset's lists have changed since.

        Raises:
            ValueError: for any other text, and where the file has rules for layers, too:
                `unamp.Precision` reads both.
        """
        import warnings

        from unamp import _precision_toml
        from unamp.made_with import changes_since

        found = _precision_toml.load(text)
        if found.layers or found.policy is None:
            what = "rules for layers, too" if found.layers else "no policy"
            raise ValueError(f"this file has {what}: read it with unamp.Precision.from_toml")
        try:
            policy = cls(**found.policy)
        except TypeError as error:
            raise ValueError(f"this is no precision file: {error}") from error
        for change in changes_since(found.lists, [policy]):
            warnings.warn(f"this file was {change}", AmpWarning, stacklevel=2)
        return policy

    def replace(self, **changes: Any) -> Policy:
        """Return a copy of the policy with some arguments changed."""
        return Policy(**{**dict(zip(_ARGUMENTS, self._values, strict=True)), **changes})

    def to_data(self) -> dict[str, Any]:
        """Return the arguments that make an equal policy, as plain values, for a file."""
        return {
            name: list(v) if isinstance(v, tuple) else v
            for name, v in zip(_ARGUMENTS, self._values, strict=True)
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Policy:
        """Return the policy that `to_data` wrote as plain values.

        Raises:
            TypeError: for any other value.
            ValueError: for a key that is unknown or missing, and for a value that no policy takes.
        """
        if not isinstance(data, Mapping):
            raise TypeError(f"a policy is an object, not {data!r:.40}")
        if different := sorted(data.keys() ^ set(_ARGUMENTS), key=str):
            raise ValueError(
                f"a policy has {', '.join(_ARGUMENTS)}; "
                f"unknown or missing: {', '.join(map(str, different))[:80]}"
            )
        return cls(**data)

    @property
    def _denies_everything(self) -> bool:
        return self.level == "OD" and self.preset == _EMPTY and not self.deny

    @property
    def active(self) -> bool:
        """Return whether it changes anything at all: enabled, and of a level above O0."""
        return self.enabled and self.level != "O0"

    def decide(self, op: OperationLike) -> Rule:
        """Return the rule for one operation.

        Args:
            op: whatever `allow` and `deny` take: a canonical name, any spelling, or the framework's
                own object.

        Raises:
            ValueError: for an unknown operation, and for the preset ``native``, whose lists depend
                on framework and device (see `delegated`).
            TypeError: for a value that is no operation, or several.
        """
        rules = self.rules
        return rules[op] if isinstance(op, str) and op in rules else rules[operation_name("op", op)]

    @property
    def rules(self) -> Mapping[str, Rule]:
        """The rule for every operation of the vocabulary."""
        return _rules(self, vocabulary().generation)

    def reason(self, op: OperationLike) -> Decision:
        """Return the decision for one operation, with where it comes from; see `decide`."""
        return _decide(self, vocabulary()[operation_name("op", op)], load_preset(self.preset))

    def check_known(self) -> None:
        """Check that the lists name known operations: a registration may have been undone.

        Raises:
            ValueError: for an unknown operation; the message names it.
        """
        if gone := [op for op in (*self.allow, *self.deny) if op not in vocabulary()]:
            raise ValueError(
                f"the policy names {', '.join(map(repr, gone))}, which is registered no more; "
                "unamp.register_operation it again"
            )

    def delegated(self, framework: str, device: str) -> Policy | None:
        """Return the policy with the lists that it has on a framework and device.

        The device is ``"cpu"``, ``"gpu"`` or ``"mps"``. Only with the preset ``native`` is the
        result another policy: one with the lists that the framework's own AMP follows on that
        device, in the version that is imported, or None where the framework does nothing of its
        own.
        """
        delegates = load_preset(self.preset).delegates
        if not delegates or not self.active:
            return self
        name = delegates.get(framework, {}).get(device)
        version = getattr(sys.modules.get(framework), "__version__", "")
        return None if name is None else self.replace(preset=as_of(name, version))


#: The preset without lists.
_EMPTY: PresetName = "none"

_ARGUMENTS = tuple("level dtype allow deny preset enabled promote widen_results cache".split())


#: The changes of rules in float32: nothing is cast down, and a ban is void, since float32 has the
#: range and the digits for lack of which an operation is banned.
_WIDENED = {Rule.LOW: Rule.FP32, Rule.BANNED: Rule.FP32, Rule.NARROWEST: Rule.WIDEST}


def _decide(policy: Policy, op: Operation, lists: Preset) -> Decision:
    decided = _decide_by_lists(policy, op, lists)
    if policy.dtype == FLOAT32 and decided.rule in _WIDENED:
        return decided._replace(rule=_WIDENED[decided.rule], advice="")
    return decided


def _decide_by_lists(policy: Policy, op: Operation, lists: Preset) -> Decision:
    def decision(rule: Rule, origin: str, advice: str = "") -> Decision:
        return Decision(op.name, rule, origin, advice)

    if not policy.active:
        return decision(Rule.UNTOUCHED, "level O0" if policy.enabled else "disabled")
    if lists.delegates:
        raise ValueError(
            f"preset {policy.preset!r} has no lists of its own; "
            "name a framework: Policy.delegated(framework, device)"
        )
    if op.is_cast:
        return decision(Rule.UNTOUCHED, "casts and moves follow no list")
    if op.name in policy.allow:
        return decision(Rule.LOW, f"your allow list{_by_group(op, policy.allow)}")
    if op.name in policy.deny:
        return decision(Rule.FP32, f"your deny list{_by_group(op, policy.deny)}")
    if denied := [part for part in op.parts if part in policy.deny]:
        return decision(Rule.FP32, f"your deny list: it computes with {', '.join(denied)}")

    level, whose = policy.level, f"preset {policy.preset}"
    if level == "O3":
        if op.keeps_its_meaning:
            return decision(Rule.UNTOUCHED, f"{op.group} operations keep their meaning")
        return decision(Rule.LOW, "level O3")
    if op.registered:
        lists = _with_registered(lists, op)
    if op.name in lists.banned and level != "OD":
        return decision(Rule.BANNED, f"{whose}: banned", lists.banned[op.name])
    if op.name in lists.denied(level, policy.dtype):
        return decision(Rule.FP32, f"{whose}: deny list")
    if op.name in lists.listed("allow", policy.dtype):
        return decision(Rule.LOW, f"{whose}: allow list")
    if op.name in lists.promote and level == "O1":
        return decision(Rule.WIDEST, f"{whose}: promote list")
    if op.keeps_its_meaning:
        return decision(Rule.UNTOUCHED, f"{op.group} operations keep their meaning")
    for follows in ("infer", "clear"):
        if op.name in lists.listed(follows, policy.dtype) and level == "O1":
            return decision(Rule.NARROWEST, f"{whose}: {follows} list")
    if policy._denies_everything:
        return decision(Rule.FP32, f"your deny list: {EVERYTHING}")
    rule = {"OD": Rule.FP32, "O1": Rule.WIDEST, "O2": Rule.WIDEST if policy.promote else Rule.LOW}[
        level
    ]
    return decision(rule, f"level {level}: on no list")


def _with_registered(lists: Preset, op: Operation) -> Preset:
    """Return a preset's lists for a registered operation, which is alone on the list of its rule.

    A preset without lists stays as it is.
    """
    alone = frozenset((op.name,))
    if lists.name == _EMPTY:
        return lists
    if op.registered == "low":
        return lists._replace(allow=alone, deny=frozenset(), deny_o2=None, by_dtype={})
    if op.registered == "float32":
        return lists._replace(allow=frozenset(), deny=alone, deny_o2=None, by_dtype={})
    return lists


def _by_group(op: Operation, listed: tuple[str, ...]) -> str:
    """Return the word for an operation's group after a colon, if all of the group is on a list."""
    word = f"group:{op.group}"
    # A single operation is never said as its group, and most lists are of one.
    return f": {word}" if len(listed) > 1 and word in words(listed) else ""


@lru_cache(KEPT_POLICIES)
def _rules(policy: Policy, generation: int) -> Mapping[str, Rule]:
    lists, known = load_preset(policy.preset), vocabulary().values()
    bare = policy.replace(allow=(), deny=())
    if bare == policy or bare._denies_everything:
        return MappingProxyType({op.name: _decide(policy, op, lists).rule for op in known})
    # Lists change the rules of the operations that they name, and of those that compute with a
    # denied one. With hundreds of policies that differ in their lists, the others add up.
    named, denied = {*policy.allow, *policy.deny}, {*policy.deny}
    changed = [op for op in known if op.name in named or not denied.isdisjoint(op.parts)]
    rules = {op.name: _decide(policy, op, lists).rule for op in changed}
    return MappingProxyType({**_rules(bare, generation), **rules})
