"""Explain the effect of a policy on every operation, without running anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from unamp.adapter import DEVICES, Adapter, How, registry
from unamp.adapter.registered import how
from unamp.devices import device_words
from unamp.errors import unknown
from unamp.policy import Decision, Policy, Rule
from unamp.presets import preset, preset_versions, with_version, without_version
from unamp.regions import check_policy
from unamp.vocabulary import vocabulary


class Explanation(NamedTuple):
    """The rule for one operation, where it comes from, and how each framework carries it out.

    Attributes:
        op, rule, origin: as in `unamp.policy.Decision`.
        how: by framework and device, e.g. ``{("torch", "cpu"): How.NATIVE}``.
        versions: the rules by the preset's lists of other versions, where they differ, e.g.
            ``{"2.11": Rule.WIDEST}``.
    """

    op: str
    rule: Rule
    origin: str
    how: Mapping[tuple[str, str], How]
    versions: Mapping[str, Rule]


def explain(
    policy: Policy, framework: str | None = None, device: str | None = None
) -> dict[str, Explanation]:
    """Return the rule for every operation, its origin, and how each framework carries it out.

    Args:
        policy: the policy.
        framework: one framework, or None for all imported ones. The preset ``native`` needs one.
        device: ``"cpu"``, ``"gpu"``, or None for both. The preset ``native`` needs one where the
            framework has several.

    Raises:
        TypeError: where ``policy`` is not a `Policy`.
        ValueError: for an unknown framework or device.
    """
    check_policy(policy)
    if device is not None and device not in DEVICES:
        raise ValueError(unknown("device", device, DEVICES))
    adapters = (
        registry.adapters_in_use() if framework is None else (registry.adapter_for(framework),)
    )
    if framework is None and preset(policy.preset).delegates:
        raise ValueError(
            f"preset {policy.preset!r} is each framework's own lists; "
            "name a framework, with --framework say"
        )
    if framework is not None and device is None and preset(policy.preset).delegates:
        device = _only_device(policy, adapters[0])
    devices = DEVICES if device is None else (device,)
    stated = policy if framework is None or device is None else _stated(policy, adapters[0], device)
    others = rules_of_versions(stated)
    return {
        op: Explanation(
            op,
            (decision := stated.reason(op)).rule,
            decision.origin,
            {(a.framework, d): how(a, op, policy, d) for a in adapters for d in devices},
            {
                version: rules[op]
                for version, rules in others.items()
                if rules[op] is not decision.rule
            },
        )
        for op in vocabulary()
    }


def lists_behind(policy: Policy, framework: str, device: str | None = None) -> str:
    """Return the name of the lists behind the preset ``native``, as in ``"torch-cuda@2.15"``.

    The name is empty where there are none.

    Args:
        policy: the policy.
        framework: the framework.
        device: see `explain`.

    Raises:
        ValueError: as `explain`.
    """
    if not preset(policy.preset).delegates or not policy.active:
        return ""
    adapter = registry.adapter_for(framework)
    stated = _stated(policy, adapter, device or _only_device(policy, adapter))
    return with_version(stated.preset) if stated.active else ""


def _only_device(policy: Policy, adapter: Adapter) -> str:
    """Return the device of a framework that has only one."""
    there = adapter.devices()
    if len(there) > 1:
        raise ValueError(
            f"preset {policy.preset!r} depends on the device; name one of: {', '.join(there)}"
        )
    (device,) = there
    return device


def rules_of_versions(policy: Policy) -> dict[str, Mapping[str, Rule]]:
    """Return a policy's rules by the versions of its preset's lists; empty without versions."""
    name = without_version(policy.preset)
    return {
        version: policy.replace(preset=f"{name}@{version}").rules
        for version in preset_versions(name)
    }


def differences(before: Policy, after: Policy) -> dict[str, tuple[Decision, Decision]]:
    """Return the operations for which two policies have different rules, each with both decisions.

    Different lists can give the same rule, which is no difference: at O1 an operation on no list
    runs in the widest dtype of its inputs, as one on a promote list does.

    Args:
        before, after: the policies; for the preset ``native``, the result of `Policy.delegated`.

    Raises:
        TypeError: where one is not a `Policy`.
        ValueError: for the preset ``native``, which has no lists of its own.
    """
    for policy in (before, after):
        check_policy(policy)
    old, new = before.rules, after.rules
    return {
        op: (before.reason(op), after.reason(op)) for op in vocabulary() if old[op] is not new[op]
    }


class Change(NamedTuple):
    """An operation whose rule changes from one policy to another.

    Attributes:
        op: the operation.
        before, after: both decisions.
        times: how often it ran; None where nothing was traced.
    """

    op: str
    before: Decision
    after: Decision
    times: int | None = None


def changes(
    before: Mapping[str, object],
    after: Mapping[str, object],
    ran: Mapping[tuple[Policy, str], int] | None = None,
    bases: Iterable[Policy] = (Policy(),),
) -> list[Change]:
    """Return the rules that change when policies get other arguments.

    Args:
        before, after: arguments of `Policy.replace`; ``allow`` and ``deny`` come on top of the
            lists that are there.
        ran: how often each operation ran under each policy (see `unamp.tracing.ran_under`); None
            asks for all operations.
        bases: the policies that get the arguments.

    Raises:
        TypeError, ValueError: as `differences`, and for bad arguments; see `Policy`.
    """
    return [
        Change(op, *decisions, None if ran is None else ran[policy, op])
        for policy in bases
        for op, decisions in differences(_on_top(policy, before), _on_top(policy, after)).items()
        if ran is None or (policy, op) in ran
    ]


def _on_top(policy: Policy, arguments: Mapping[str, Any]) -> Policy:
    lists = {
        name: (*getattr(policy, name), *more)
        for name, more in arguments.items()
        if name in ("allow", "deny")
    }
    return policy.replace(**{**arguments, **lists})


def _stated(policy: Policy, adapter: Adapter, device: str) -> Policy:
    named = device_words(adapter).get(device, device)
    return policy.delegated(adapter.framework, named) or Policy(
        policy.level, policy.dtype, enabled=False
    )
