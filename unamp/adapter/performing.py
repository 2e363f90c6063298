"""For adapters that carry rules out themselves, call by call: what a rule comes to, whatever the framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unamp.errors import BannedOperation
from unamp.policy import Rule

__all__ = ["performing", "target"]

#: The result of a call, the dtype that was computed in, and whether that was emulated.
Outcome = tuple[Any, Any, bool]


def target(rule: Rule, low: Any, float32: Any, seen: list[Any], mixed: bool) -> Any:
    """Return the dtype that a rule casts eligible inputs to; None to leave everything as it is.

    Args:
        rule: the rule.
        low: the policy's dtype.
        float32: the framework's float32.
        seen: the dtypes of the eligible inputs, at least one.
        mixed: whether they differ.
    """
    if rule is Rule.LOW:
        return low
    if rule is Rule.FP32:
        return float32
    if mixed:
        return float32 if rule is Rule.WIDEST else None
    return None if seen[0] is float32 else seen[0]


def performing(
    carried_out: Callable[[Any, Rule, Any, Any, dict[str, Any]], Outcome],
    floats: Callable[[Any], list[Any]],
    widened: Callable[[Any], Any],
) -> Callable[[Any, str | None, Rule, Any, Any, dict[str, Any]], Outcome]:
    """Return a function that applies a rule to one call: a ban raises, and with `widen_results` a low result is widened.

    Args:
        carried_out: calls an operation with its inputs cast as a rule says that neither bans nor widens results, given the
            operation, the rule, the plan and the arguments.
        floats: the dtypes of the eligible tensors among arguments.
        widened: a result in float32.

    Returns:
        A function of the operation, its name in the vocabulary, the rule, the plan and the arguments. A plan has a `policy`
        and `advice` about what is banned.
    """

    def perform(operator: Any, op: str | None, rule: Rule, plan: Any, args: Any, kwargs: dict[str, Any]) -> Outcome:
        if rule is Rule.LOW and plan.policy.widen_results:
            result, dtype, emulated = carried_out(operator, rule, plan, args, kwargs)
            return widened(result), dtype, emulated
        if rule is Rule.BANNED:
            if floats((args, kwargs)):
                raise BannedOperation(f"{op} is banned by the policy in force. {plan.advice(op)}".rstrip())
            rule = Rule.UNTOUCHED
        return carried_out(operator, rule, plan, args, kwargs)

    return perform
