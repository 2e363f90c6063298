"""The run in a way is compared with the eager run."""

import numpy as np
import pytest
from unamp_conformance.check.wayjudging import judged
from unamp_conformance.check.wayruns import Seen, in_other_precisions
from unamp_conformance.subjects import Subject

from unamp import Policy
from unamp.adapter import NamedOperations, Way

GRADIENT = np.array([0.5, -0.25])


def seen(loss, gradient=GRADIENT):
    return Seen(np.array([loss]), "float32", {0: gradient}, {0: "float32"})


NEXT = 1.7614881992340088


def complaint(loss, gradient=GRADIENT):
    way = Way("a step", "transformed", value_and_grad=lambda *_: None)
    found = judged(
        Subject("torch", "cpu"),
        way,
        "lstm",
        Policy(),
        seen(1.7614880800247192),
        seen(loss, gradient),
        {},
    )
    assert found.status == ("failed" if found.message else "passed")
    return found.message


@pytest.mark.parametrize(
    ("loss", "gradient", "says"),
    [
        (1.7614880800247192, GRADIENT, ""),
        (NEXT, GRADIENT, ""),
        (1.7614880800247192 * (1 + 2**-20), GRADIENT, "other bits than eagerly: the result"),
        (
            1.7614880800247192,
            np.nextafter(GRADIENT, 1),
            "other bits than eagerly: the gradient of table",
        ),
    ],
)
def test_a_loss_may_differ_in_its_last_bits_where_none_is_repeated_and_a_gradient_may_not(
    loss, gradient, says, monkeypatch
):
    monkeypatch.setattr(NamedOperations, "repeats", False)
    assert complaint(loss, gradient) == says


def test_elsewhere_a_loss_is_held_to_bits():
    assert complaint(1.7614880800247192) == ""
    assert complaint(NEXT) == "other bits than eagerly: the result"


def test_gradients_are_compared_place_by_place_where_both_runs_have_them():
    def verdict(eagerly, here):
        runs = (
            Seen(np.array([0.1]), "float16", dict.fromkeys(dtypes, GRADIENT), dtypes)
            for dtypes in (eagerly, here)
        )
        way = Way("compiled", "compiled", lambda *_: None)
        found = judged(Subject("torch", "cpu"), way, "binary_cross_entropy", Policy(), *runs, {})
        return found.status, found.message

    low = {0: "float16", 1: "float32"}
    assert verdict(low, low) == ("passed", "")
    # eagerly a target has none, and a compiled function one in the target's own dtype
    assert verdict({0: "float16"}, low) == ("passed", "")
    assert verdict(low, {0: "float16"}) == (
        "failed",
        "other bits than eagerly: the gradient of x1",
    )
    assert verdict(low, {0: "float32", 1: "float16"}) == (
        "lost",
        "lost in silence: gradients are float32, float16, eagerly float16, float32",
    )


def test_float32_is_another_precision_only_where_a_policy_makes_something_low():
    """A framework may add up in another order in a region: two float32 runs tell nothing."""

    def others(policy):
        return in_other_precisions(Subject("torch", "cpu"), ("mlp", False, True, ()), policy)

    assert others(Policy("O1", "bfloat16")).keys() == {"float32", "float16"}
    assert others(Policy("O1", "bfloat16", preset="none")).keys() == {"float16"}
