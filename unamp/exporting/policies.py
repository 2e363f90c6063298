"""The parts that all tools' lists share: a precision's low dtype, and operator types by rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from unamp.dtypes import LOW_DTYPES
from unamp.layers.patterns import expression
from unamp.policy import Policy, Rule
from unamp.precision import Precision


class ExportLists(NamedTuple):
    """The arguments of a tool for a policy.

    Attributes:
        tool: the tool.
        arguments: the arguments, as plain values.
        code: Python code that calls the tool with them.
        unsaid: a sentence on each thing that the policy says and the arguments cannot say.
    """

    tool: str
    arguments: dict[str, object]
    code: str
    unsaid: list[str]


class SortedTypes(NamedTuple):
    """Types of operators, by the rules for the operations that they may be.

    Attributes:
        low: those that run low.
        float32: those that stay in float32.
        following: those that run in a dtype of their inputs.
        mixed: those for which the policy says different things.
        unnamed: those that no operation of the vocabulary corresponds to.
    """

    low: list[str]
    float32: list[str]
    following: list[str]
    mixed: list[str]
    unnamed: list[str]


def sorted_types(policy: Policy, types: Mapping[str, Iterable[str]]) -> SortedTypes:
    """Return types of operators by the rules for their operations."""
    found = SortedTypes([], [], [], [], [])
    for kind, ops in sorted(types.items()):
        rules = {policy.decide(op) for op in ops}
        if not rules:
            found.unnamed.append(kind)
        elif rules == {Rule.LOW}:
            found.low.append(kind)
        elif rules <= {Rule.FP32, Rule.BANNED}:
            found.float32.append(kind)
        elif all(rule.leaves_agreeing for rule in rules):
            found.following.append(kind)
        else:
            found.mixed.append(kind)
    return found


def low_dtype(precision: Precision, tool: str, takes: tuple[str, ...]) -> str:
    """Return the one low dtype of a policy and its rules for layers.

    Raises:
        ValueError: where there is none, where there are two, and where the tool does not have it.
    """
    policies = [
        precision.policy,
        *(rule.policy for rule in precision.layers if isinstance(rule.policy, Policy)),
    ]
    found = sorted(
        {
            p.dtype
            for p in policies
            if p.active and p.dtype in LOW_DTYPES and Rule.LOW in p.rules.values()
        }
    )
    if not found:
        raise ValueError(
            f"nothing is low under this policy, so there is nothing for {tool} to convert"
        )
    if len(found) > 1:
        raise ValueError(
            f"the policy and its rules for layers have {' and '.join(found)}; "
            f"{tool} takes one low dtype"
        )
    if found[0] not in takes:
        raise ValueError(f"{tool} has no {found[0]}; it converts to {' or '.join(takes)}")
    return found[0]


def layer_expressions(precision: Precision) -> tuple[list[str], list[str]]:
    """Return regular expressions for the names of layers that stay in float32.

    Return also a sentence for each rule that no expression can say.
    """
    found, unsaid = [], []
    for rule in precision.layers:
        if rule.policy != "float32":
            unsaid.append(
                f"the rule for layers {rule.pattern!r} has a policy of its own, "
                "which one list cannot say"
            )
        elif ":" in rule.pattern:
            unsaid.append(
                f"the rule for layers {rule.pattern!r} asks for a class; only names can be said"
            )
        else:
            found.append(rf"{expression(rule.pattern).pattern}(\.|$)")
    return found, unsaid + results_unsaid(precision)


def results_unsaid(precision: Precision) -> list[str]:
    """Return a sentence for each rule that casts the results of its layers."""
    return [
        f"the rule for layers {rule.pattern!r} casts its results to the low dtype; "
        "what comes behind is taken as without that"
        for rule in precision.layers
        if rule.result is not None
    ]
