"""A plan with a user's lists is as if every operation had been decided anew."""

import pytest
from unamp_mindspore.listing import operators
from unamp_mindspore.plans import plan

from unamp import Policy, Rule


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "OD"])
@pytest.mark.parametrize("preset", ["unamp", "none", "mindspore"])
@pytest.mark.parametrize(
    "lists",
    [
        {"allow": ["add"]},
        {"deny": ["linear", "softmax"]},
        {"allow": ["group:norm"], "deny": ["matmul"]},
        {"allow": ["interpolate", "sum"], "deny": ["lstm", "grid_sample"]},
        {"deny": ["*"]},
    ],
    ids=str,
)
def test_a_plan_with_lists_is_what_it_would_be_if_every_operation_was_decided(level, preset, lists):
    made = plan(Policy(level, "float16", preset=preset, **lists), None)
    for each in (made, made.observed):
        assert each.changes_float32 == {
            operator.name for operator in operators() if each._may_change_float32(operator)
        }
        rules = {
            o: each.rule(o.op) for o in operators() if o.plain and not each.follows_parts(o.op)
        }
        assert each.quick == {
            operator: rule for operator, rule in rules.items() if rule is not Rule.BANNED
        }
