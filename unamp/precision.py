"""One file for a network's precision: its policy, the rules for its layers, and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from unamp import amp_warnings
from unamp._precision_toml import Contents, dump, load
from unamp.layers.applying import ever_applied
from unamp.layers.rules import LayerRules
from unamp.lists import is_word, operation_name, read
from unamp.made_with import changes_since, lists_of, with_lists
from unamp.policy import Policy
from unamp.presets import with_version
from unamp.regions import Region, check_policy, policy_region


class Precision:
    """A policy, rules for layers, and reasons: the contents of a `precision.toml`.

    It is immutable, and equal by value.

    Args:
        policy: the policy.
        layers: the rules for layers.
        reason: why the policy is as it is.
        reasons: why an operation is on a list of the policy, by the entry
            (``{"exp": "overflows"}``).
        pinned: keep the presets' lists as they are today: each preset is named with its newest
            version (``"torch-cuda@2.15"``).

    Raises:
        TypeError, ValueError: for bad arguments, for a reason of an operation that is on no list,
            and with `pinned` for a preset that has no versions.
    """

    policy: Policy
    layers: LayerRules
    reason: str
    reasons: Mapping[str, str]

    def __init__(
        self,
        policy: Policy,
        layers: LayerRules | None = None,
        *,
        reason: str = "",
        reasons: Mapping[str, str] | None = None,
        pinned: bool = False,
    ) -> None:
        check_policy(policy)
        layers = LayerRules() if layers is None else layers
        if not isinstance(layers, LayerRules):
            raise TypeError(f"layers must be unamp.LayerRules, not {type(layers).__name__}")
        if pinned:
            policy, layers = _named(policy), _with_policies(layers, _named)
        known = {
            entry if is_word(entry) else operation_name("reasons", entry): why
            for entry, why in (reasons or {}).items()
        }
        for entry, why in {"": reason, **known}.items():
            if not isinstance(why, str) or not why.isprintable():
                raise ValueError(f"a reason must be printable text, not {why!r:.40}")
            if entry and not _is_listed(policy, entry):
                raise ValueError(
                    f"there is a reason for {entry!r}, which is on no list of the policy"
                )
        vars(self).update(
            policy=policy, layers=layers, reason=reason, reasons=MappingProxyType(known)
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Precision does not change; make another one")

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, Precision) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.policy, self.layers))

    def __reduce__(self) -> tuple[object, ...]:
        return partial(
            type(self), self.policy, self.layers, reason=self.reason, reasons=dict(self.reasons)
        ), ()

    def __repr__(self) -> str:
        return f"Precision({self.policy!r}, {self.layers!r})"

    @property
    def _values(self) -> tuple[object, ...]:
        return self.policy, self.layers, self.reason, dict(self.reasons)

    @classmethod
    def from_toml(cls, text: str, *, pinned: bool = False) -> Precision:
        """Return the precision that the text of a `precision.toml` states.

        A warning names the operations whose rules have changed, where a preset has other lists
        today than the text was made with.

        Args:
            text: the text. Nothing in it is executed or imported.
            pinned: keep the lists that the text was made with: name each preset with the version
                that it states.

        Raises:
            ValueError: for any other text; the message says where and why.
        """
        found, changes = cls._loaded(text, pinned)
        amp_warnings.lists_changed("this file", changes)
        return found

    @classmethod
    def _loaded(cls, text: str, pinned: bool) -> tuple[Precision, list[str]]:
        """Return the precision of a text, and what changed since it was made."""
        found = load(text)
        try:
            policy, layers = Policy(**(found.policy or {})), LayerRules.from_tables(found.layers)
            changes = changes_since(found.lists, [policy, *layers.policies])
            if pinned:
                policy, layers = (
                    with_lists(policy, found.lists),
                    _with_policies(layers, lambda p: with_lists(p, found.lists)),
                )
            made = cls(policy, layers, reason=found.reason, reasons=found.reasons, pinned=pinned)
        except (TypeError, ValueError) as error:
            raise ValueError(f"this is no precision file: {error}") from error
        return made, [] if pinned else changes

    def to_toml(self, *, over: str | None = None) -> str:
        """Return the text of a `precision.toml`, which `from_toml` reads.

        Args:
            over: the text of such a file, whose comments and layout are kept: only what differs is
                changed in it.

        Raises:
            ModuleNotFoundError: where `over` is given and tomlkit is not installed.
        """
        stated = self.policy.stated()
        for name in ("allow", "deny"):
            further = [
                entry
                for entry in self.reasons
                if entry not in stated.get(name, ()) and self._on(name, entry)
            ]
            if further:
                stated[name] = [*stated.get(name, ()), *further]
        lists = lists_of([self.policy, *self.layers.policies])
        contents = Contents(stated, self.layers.tables(), self.reason, self.reasons, lists)
        if over is None:
            return dump(contents)
        load(over)
        from unamp._toml_editing import edited  # it needs tomlkit

        return edited(over, contents)

    def _on(self, name: str, entry: str) -> bool:
        """Return whether a list has an entry, with all operations that the entry stands for."""
        if not is_word(entry):
            return entry in getattr(self.policy, name)
        meant = read(name, entry).meant
        return bool(meant) and meant <= {*getattr(self.policy, name)}

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, pinned: bool = False) -> Precision:
        """Return the precision that a file states; see `from_toml`.

        Args:
            path: the file.
            pinned: keep the lists that the file was made with.

        Raises:
            OSError: where the file cannot be read.
            ValueError: as `from_toml`; the message names the file.
        """
        try:
            found, changes = cls._loaded(Path(path).read_text("utf-8"), pinned)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{os.fspath(path)}: this is no precision file: it is no UTF-8"
            ) from error
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error
        amp_warnings.lists_changed(os.fspath(path), changes)
        return found


def _is_listed(policy: Policy, entry: str) -> bool:
    """Return whether a list of a policy has an entry, or an operation that the entry stands for.

    One operation is enough: the other list may name the rest.
    """
    found = read("reasons", entry)
    stated = policy.stated()
    lists = (*policy.allow, *policy.deny, *stated.get("allow", ()), *stated.get("deny", ()))
    return (found.everything and entry in lists) or not (found.named | found.meant).isdisjoint(
        lists
    )


def _named(policy: Policy) -> Policy:
    """Return a policy whose preset is named with its newest version."""
    return policy.replace(preset=with_version(policy.preset))


def _with_policies(layers: LayerRules, change: Callable[[Policy], Policy]) -> LayerRules:
    return LayerRules(
        rule._replace(policy=change(rule.policy)) if isinstance(rule.policy, Policy) else rule
        for rule in layers
    )


def region_from(
    path: str | os.PathLike[str], *, framework: str | None = None, pinned: bool = False
) -> Region:
    """Return a region for the policy in a `precision.toml`.

    A region does not carry out the file's rules for layers: `unamp.layer_policies` puts them on a
    network. A warning comes where no network has them.

    Args:
        path: the file.
        framework: limit the region to one framework; None is every framework that is imported.
        pinned: keep the lists that the file was made with, as `Precision.read` does.

    Raises:
        OSError, ValueError: as `Precision.read`.
    """
    found = Precision.read(path, pinned=pinned)
    if len(found.layers) and not ever_applied(found.layers):
        amp_warnings.rules_not_applied(os.fspath(path), len(found.layers))
    return policy_region(found.policy, framework=framework)
