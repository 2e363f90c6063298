"""Rules for layers as a value: patterns, each with a policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from unamp import amp_warnings
from unamp.dtypes import FLOAT32
from unamp.errors import shortened, unknown
from unamp.layers.patterns import as_pattern
from unamp.made_with import changes_since, lists_of
from unamp.policy import Policy

#: The result of a layer goes back to the low dtype.
LOW_RESULT = "low"

_FIELDS = ("pattern", "policy", "result", "reason")


class LayerRule(NamedTuple):
    """A policy for the layers that a pattern matches, and for all that they call.

    Attributes:
        pattern: the pattern of the layers; see `unamp.layers.patterns`.
        policy: a `Policy`, or ``"float32"``: every operation in float32.
        result: ``"low"``: the layer's float32 results are cast to the low dtype in force around it.
            None leaves them.
        reason: the reason for the rule, for people.
    """

    pattern: str
    policy: Policy | str
    result: str | None = None
    reason: str = ""


class LayerRules:
    """Rules for layers, in order; immutable, hashable, equal by value.

    Where several patterns match one layer, the last one counts.

    Args:
        rules: a mapping of patterns (or classes of layers) to policies or ``"float32"``; or
            `LayerRule` objects.
        result: `LayerRule.result` of each rule, where `rules` is a mapping.

    Raises:
        TypeError: for a value that is no rule.
        ValueError: for a bad pattern, word for a policy or `result`, and for a pattern that comes
            twice.
    """

    _rules: tuple[LayerRule, ...]

    def __init__(
        self, rules: Mapping[Any, Any] | Iterable[LayerRule] = (), *, result: str | None = None
    ) -> None:
        if isinstance(rules, Mapping):
            rules = [LayerRule(pattern, policy, result) for pattern, policy in rules.items()]
        elif result is not None:
            raise ValueError("result goes with a mapping; a LayerRule has its own")
        checked = tuple(map(_checked, rules))
        patterns = [rule.pattern for rule in checked]
        if twice := next(
            (pattern for pattern, count in Counter(patterns).items() if count > 1), None
        ):
            raise ValueError(
                f"pattern {twice!r} has two rules; the later would always win: leave one out"
            )
        object.__setattr__(self, "_rules", checked)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("rules for layers do not change; make others")

    def __iter__(self) -> Iterator[LayerRule]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def __eq__(self, other: object) -> bool:
        return self._rules == other._rules if isinstance(other, LayerRules) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._rules)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._rules,)

    def __repr__(self) -> str:
        return f"LayerRules([{', '.join(map(repr, self._rules))}])"

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Return the policies of the rules that have one."""
        return tuple(rule.policy for rule in self if isinstance(rule.policy, Policy))

    def to_data(self) -> list[dict[str, Any]]:
        """Return the rules as plain values, for a file."""
        return [_with_policy(rule, Policy.to_data) for rule in self]

    @classmethod
    def from_data(cls, data: Any) -> LayerRules:
        """Return the rules that `to_data` wrote as plain values.

        Raises:
            TypeError, ValueError: for anything else; the message says where and what.
        """
        if not isinstance(data, list):
            raise TypeError(f"rules for layers are a list, not {shortened(data, 40)}")
        return cls(map(_from_data, data))

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the rules as JSON; `from_json` reads it again."""
        import json  # slow to import

        return json.dumps(
            {"format": _FORMAT, "version": _VERSION, "layers": self.to_data()}, indent=indent
        )

    @classmethod
    def from_json(cls, text: str) -> LayerRules:
        """Return the rules that `to_json` wrote.

        Raises:
            ValueError: for any other text, and for a version that this unamp does not know.
        """
        from unamp import _strict_json as strict

        try:
            names = ("format", "version", "layers")
            found = strict.fields("it", strict.parsed(text), names, names)
            if found["format"] != _FORMAT or found["version"] != _VERSION:
                raise ValueError(
                    f"its format is {shortened(found['format'], 40)}, "
                    f"version {shortened(found['version'], 40)}"
                )
            return cls.from_data(found["layers"])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"these are no rules for layers of version {_VERSION}: {error}"
            ) from error

    def tables(self) -> list[dict[str, Any]]:
        """Return the rules as a `precision.toml` states them."""
        return [_with_policy(rule, Policy.stated) for rule in self]

    @classmethod
    def from_tables(cls, tables: Iterable[Mapping[str, Any]]) -> LayerRules:
        """Return the rules that `tables` wrote; missing arguments of a policy have defaults."""
        return cls(map(_from_table, tables))

    def to_toml(self) -> str:
        """Return the rules as the text of a `precision.toml`, which `from_toml` reads.

        See `unamp.Precision` for a file that holds a policy, too.
        """
        from unamp import _precision_toml  # slow to import

        return _precision_toml.dump(
            _precision_toml.Contents(layers=self.tables(), lists=lists_of(self.policies))
        )

    @classmethod
    def from_toml(cls, text: str) -> LayerRules:
        """Return the rules in the text of a `precision.toml`.

        Warn where the lists of their presets have changed since.

        Raises:
            ValueError: for any other text, and where the file has a policy, too: `unamp.Precision`
                reads both.
        """
        from unamp import _precision_toml

        found = _precision_toml.load(text)
        if found.policy is not None:
            raise ValueError("this file has a policy, too: read it with unamp.Precision.from_toml")
        try:
            rules = cls.from_tables(found.layers)
            changes = changes_since(found.lists, rules.policies)
        except (TypeError, ValueError) as error:
            raise ValueError(f"this is no precision file: {error}") from error
        amp_warnings.lists_changed("this file", changes)
        return rules


_FORMAT, _VERSION = "unamp layer rules", 1


def _with_policy(rule: LayerRule, written: Callable[[Policy], object]) -> dict[str, Any]:
    """Return a rule's fields, with its policy as a function writes it."""
    policy = written(rule.policy) if isinstance(rule.policy, Policy) else rule.policy
    return {**rule._asdict(), "policy": policy}


def _checked(rule: object) -> LayerRule:
    if not isinstance(rule, LayerRule):
        raise TypeError(
            "rules are a mapping of patterns to policies, or unamp.LayerRule objects; "
            f"not {shortened(rule)}"
        )
    pattern = as_pattern(rule.pattern)
    if not isinstance(rule.policy, Policy) and rule.policy != FLOAT32:
        message = (
            f"the rule for {pattern!r} must be 'float32' or an unamp.Policy, "
            f"not {shortened(rule.policy)}"
        )
        if isinstance(rule.policy, str):
            raise ValueError(
                f"{message}; say unamp.Policy('O3', 'float16') for everything in a low dtype"
            )
        raise TypeError(message)
    if rule.result not in (None, LOW_RESULT):
        raise ValueError(unknown("result", rule.result, (LOW_RESULT,), "valid: None, or"))
    if not isinstance(rule.reason, str) or not rule.reason.isprintable():
        raise ValueError(
            f"the reason for {pattern!r} must be printable text, not {shortened(rule.reason)}"
        )
    return rule._replace(pattern=pattern)


def _from_table(table: Mapping[str, Any]) -> LayerRule:
    policy = table["policy"]
    return LayerRule(**{**table, "policy": policy if isinstance(policy, str) else Policy(**policy)})


def _from_data(data: Any) -> LayerRule:
    if not isinstance(data, Mapping):
        raise TypeError(f"a rule for layers is an object, not {shortened(data, 40)}")
    if different := sorted(data.keys() ^ set(_FIELDS), key=str):
        raise ValueError(
            f"a rule for layers has {', '.join(_FIELDS)}; "
            f"unknown or missing: {shortened(different[0], 40)}"
        )
    if not isinstance(data["pattern"], str):
        raise TypeError(f"a pattern is text, not {shortened(data['pattern'], 40)}")
    policy = data["policy"]
    return LayerRule(
        **{**data, "policy": policy if isinstance(policy, str) else Policy.from_data(policy)}
    )
