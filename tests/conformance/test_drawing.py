"""A draw from a plan covers everything once, and depends on the seed alone."""

from collections import Counter

from unamp_conformance.run.drawing import OPERATIONS, brief, drawn, met, sample, told
from unamp_conformance.run.plan import Selection, items

from unamp.vocabulary import vocabulary

OPS = ["add", "exp", "matmul", "softmax"]
PLAN = list(items(Selection(), OPS, ["jit", "a loop", "a thread"]))


def everything(items):
    return {part for item in items for part in met(item)}


def test_every_check_network_level_dtype_and_way_is_met_however_few_are_drawn():
    few = sample(PLAN, 1, seed=3)
    assert everything(few) == everything(PLAN)
    assert {kind for kind, _ in everything(PLAN)} == {
        "check",
        "network",
        "level",
        "dtype",
        "way for way",
        "way for layers",
    }
    assert len(few) < len(PLAN) / 4


def test_as_many_are_drawn_as_asked_for_in_the_order_of_the_plan():
    some = sample(PLAN, 200, seed=3)
    assert len(some) == 200
    assert [item for item in PLAN if item in some] == some
    assert sample(PLAN, len(PLAN), seed=3) == PLAN


def test_a_brief_run_has_the_whole_matrix_everything_once_and_a_number_of_operations():
    plan = list(items(Selection(), list(vocabulary())[:300], ["jit", "a loop"]))
    found = brief(plan, seed=3)
    assert everything(found) == everything(plan)
    cells = [
        item
        for item in plan
        if item.kind == "network" and next(iter(item.policies)).endswith(" unamp")
    ]
    assert cells
    assert all(item in found for item in cells)
    assert Counter(item.kind for item in found)["operation"] == OPERATIONS
    assert found == [item for item in plan if item in found]
    assert found != brief(plan, seed=4)
    assert (
        told(found, plan, 3)
        == f"60 of 300 operations, {len(found):,} of {len(plan):,} items, seed 3"
    )


def test_a_selection_says_what_is_drawn():
    assert drawn(PLAN, Selection()) == PLAN
    assert drawn(PLAN, Selection(brief=True, seed=3)) == brief(PLAN, 3)
    assert drawn(PLAN, Selection(sample=90, seed=3)) == sample(PLAN, 90, 3)


def test_a_seed_draws_the_same_again_and_another_seed_others():
    assert sample(PLAN, 100, seed=3) == sample(PLAN, 100, seed=3)
    assert sample(PLAN, 100, seed=3) != sample(PLAN, 100, seed=4)


def test_frameworks_draw_the_same_of_what_they_have_in_common():
    fewer = [item for item in PLAN if item.subject != "matmul"]
    one, other = sample(PLAN, 150, seed=5), sample(fewer, 150, seed=5)
    networks = [[item for item in found if item.kind == "network"] for found in (one, other)]
    assert len([item for item in networks[0] if item in networks[1]]) > 0.9 * len(networks[0])
