"""The suite notices a defect in this adapter, and names the wrong operation; see `spoilt`."""

import ml_dtypes
import numpy as np
import pytest
from spoilt import (  # noqa: F401
    test_a_defect_of_any_kind_is_noticed,
    test_an_operation_carried_out_wrongly_is_named,
    test_networks_that_compute_in_another_dtype_are_noticed,
)
from unamp_conformance.meta.mutants import KINDS, MutableSubject
from unamp_conformance.meta.noticing import NOTICED, Bench
from unamp_conformance.run.plan import Selection
from unamp_conformance.run.worker import perform, planned
from unamp_conformance.subjects import Subject
from unamp_jax.composites import performer
from unamp_jax.state import FLOAT32

from unamp.policy import Rule

SUBJECT = Subject("jax", "cpu")


def test_a_logarithm_in_bfloat16_where_a_rule_says_float32_is_noticed(monkeypatch):
    real = performer.target

    def spoilt(plan, operator, rule, seen, mixed):
        wanted = real(plan, operator, rule, seen, mixed)
        same = (
            operator.op == "log" and rule is Rule.FP32 and all(dtype is FLOAT32 for dtype in seen)
        )
        return np.dtype(ml_dtypes.bfloat16) if same else wanted

    monkeypatch.setattr(performer, "target", spoilt)
    (item,) = (
        item for item in planned(SUBJECT, Selection(ops=("log",))) if item.kind == "operation"
    )
    failed = [result for result in perform(SUBJECT, item) if result.status == "failed"]
    assert failed
    assert all(
        "float32 inputs, forward: computed in bfloat16" in result.message for result in failed
    )


@pytest.mark.parametrize("op", ["binomial", "gamma"])
def test_chance_with_a_key_tells_what_its_parameters_were_cast_to(op):
    """The results are integers or float64 in any case, so their dtype tells nothing."""
    kinds = [
        KINDS[name]
        for name in (
            "forgotten",
            "forward, float32 inputs, rule low",
            "forward, float32 inputs, rule float32",
        )
    ]
    assert dict(Bench(MutableSubject("jax", "cpu")).verdicts(op, kinds)) == {
        kind.name: NOTICED for kind in kinds
    }
