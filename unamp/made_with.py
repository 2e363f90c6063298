"""The lists that a `precision.toml` was made with, and the rules that change with newer ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

from unamp.errors import shortened
from unamp.presets import check_preset, preset_versions
from unamp.typing import PresetName


class _Policy(Protocol):  # for `unamp.Policy`, whose module imports this one
    @property
    def preset(self) -> PresetName: ...
    @property
    def rules(self) -> Mapping[str, object]: ...
    def replace(self, **changes: Any) -> Any: ...


P = TypeVar("P", bound=_Policy)


def lists_of(policies: Iterable[_Policy]) -> dict[str, str]:
    """Return the newest version of each preset that policies name without a version."""
    names = dict.fromkeys(policy.preset for policy in policies if "@" not in policy.preset)
    return {name: versions[-1] for name in names if (versions := preset_versions(name))}


def with_lists(policy: P, lists: Mapping[str, str]) -> P:
    """Return a policy with the version of its preset's lists that a file states.

    Raises:
        ValueError: for a version that this unamp does not have; the message lists its versions.
    """
    version = lists.get(policy.preset)
    if version is None:
        return policy
    stated: P = policy.replace(preset=f"{policy.preset}@{version}")
    return stated


def changes_since(lists: Mapping[str, str], policies: Iterable[_Policy]) -> list[str]:
    """Return a sentence for each preset whose newest lists change the rules of a file.

    Args:
        lists: the version of each preset that the file states.
        policies: those in the file.

    Raises:
        ValueError: for a value that is no preset with versions.
    """
    found, given = [], list(policies)
    for name, version in lists.items():
        check_preset(name)
        if not (versions := preset_versions(name)):
            raise ValueError(f"lists: preset {name!r} has no versions")
        meant = [policy for policy in given if policy.preset == name]
        if meant and version not in versions:
            found.append(
                f"made with the lists of {name} {shortened(version)}, which this unamp does not "
                f"have ({', '.join(versions)}): those of {versions[-1]} are followed; update unamp"
            )
            continue
        changed = {
            op
            for policy in meant
            for op, rule in with_lists(policy, lists).rules.items()
            if rule is not policy.rules[op]
        }
        if changed:
            found.append(
                f"made with the lists of {name} {version}, and those of {versions[-1]} are "
                f"followed, with other rules for {', '.join(sorted(changed))}; "
                f'preset = "{name}@{version}" in the file holds the old ones, '
                "writing the file again accepts the new ones"
            )
    return found
