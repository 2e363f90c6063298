"""A sample of a plan meets everything once, and is the same one for the same seed."""

from unamp_conformance.drawing import drawn, met
from unamp_conformance.plan import Selection, items

OPS = ["add", "exp", "matmul", "softmax"]
PLAN = list(items(Selection(), OPS, ["jit", "a loop", "a thread"]))


def everything(items):
    return {part for item in items for part in met(item)}


def test_every_check_network_level_and_way_is_met_however_few_are_drawn():
    few = drawn(PLAN, 1, seed=3)
    assert everything(few) == everything(PLAN)
    assert {kind for kind, _ in everything(PLAN)} == {"check", "network", "level", "way for way", "way for layers"}
    assert len(few) < len(PLAN) / 4


def test_as_many_are_drawn_as_asked_for_in_the_order_of_the_plan():
    some = drawn(PLAN, 200, seed=3)
    assert len(some) == 200
    assert [item for item in PLAN if item in some] == some
    assert drawn(PLAN, len(PLAN), seed=3) == PLAN


def test_a_seed_draws_the_same_again_and_another_seed_others():
    assert drawn(PLAN, 100, seed=3) == drawn(PLAN, 100, seed=3)
    assert drawn(PLAN, 100, seed=3) != drawn(PLAN, 100, seed=4)


def test_frameworks_draw_the_same_of_what_they_have_in_common():
    fewer = [item for item in PLAN if item.subject != "matmul"]
    one, other = drawn(PLAN, 150, seed=5), drawn(fewer, 150, seed=5)
    networks = [[item for item in found if item.kind == "network"] for found in (one, other)]
    assert len([item for item in networks[0] if item in networks[1]]) > 0.9 * len(networks[0])
