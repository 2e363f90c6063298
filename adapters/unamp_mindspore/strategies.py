"""MindSpore's own strategy for a policy, for operations that its compiler resolves in C++."""

from __future__ import annotations

from mindspore._c_expression import amp

from unamp.policy import Policy, Rule
from unamp.vocabulary import vocabulary
from unamp_mindspore.graph_calls import CASTS_NOTHING
from unamp_mindspore.state import DTYPES

#: The attribute of a function or cell in which MindSpore looks for a strategy.
STRATEGY = "amp_strategy"

#: The primitive that adds up a tensor's gradients, whose dtype must stay the tensor's.
_OF_GRADIENTS = "AddN"


def strategy(policy: Policy | None) -> amp.AmpStrategy:
    """Return MindSpore's own strategy with the rules of a policy that it can express."""
    if policy is None:
        return CASTS_NOTHING
    found: dict[bool, list[tuple[str, list[int]]]] = {True: [], False: []}
    for op in vocabulary().values():
        rule = policy.rules[op.name]
        if op.group != "cast" and rule in (Rule.LOW, Rule.FP32, Rule.BANNED):
            is_low = rule is Rule.LOW
            activation = [0] if op.group == "norm" and is_low else []
            found[is_low] += [
                (name, activation)
                for name in op.spellings.get("mindspore", ())
                if "." not in name and name != _OF_GRADIENTS
            ]
    return amp.create_amp_strategy(
        amp.AmpLevel.AmpAuto, DTYPES[policy.dtype], found[True], found[False]
    )
