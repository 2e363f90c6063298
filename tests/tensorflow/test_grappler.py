"""The preset with grappler's lists decides as grappler does on grappler's own graphs.

The exceptions are nodes for which grappler looks further than at a node's inputs. grappler's tests
are for float16 on a GPU. Their expectations are compared with the preset, and with grappler itself
as it rewrites the same graphs for bfloat16 on a CPU.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

import unamp
from tests.tensorflow.grappler_graphs import CASES, LOOPS, Place
from tests.tensorflow.grappler_pass import ANSWERS, rewritten, runs_here

DTYPES = ("float16", "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "tf.function"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in LOOPS])
def test_a_graph_of_grapplers(name: str, graph: bool, dtype: str) -> None:
    check(name, dtype, graph=graph)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_grapplers(name: str, dtype: str) -> None:
    check(name, dtype, graph=True)


def check(name: str, dtype: str, *, graph: bool) -> None:
    case, place = CASES[name], Place(dtype)
    with unamp.autocast(level="O1", dtype=dtype, preset="tensorflow"):
        (tf.function(case.build) if graph else case.build)(place)
    assert {
        node: found for node, found in place.dtypes.items() if node in case.expected
    } == case.but(case.later)


@pytest.mark.parametrize("name", CASES)
def test_what_grappler_answered(name: str) -> None:
    case = CASES[name]
    assert {
        node: dtype for node, dtype in ANSWERS[name].items() if node in case.expected
    } == case.but(case.on_cpu)


@pytest.mark.parametrize("name", CASES)
def test_grappler_itself(name: str) -> None:
    """On a processor where the pass does not run, every node keeps its dtype without a policy."""
    assert rewritten(name) == (ANSWERS[name] if runs_here() else untouched(name))


def untouched(name: str) -> dict[str, str]:
    place = Place("bfloat16")
    tf.function(CASES[name].build)(place)
    return place.dtypes


def test_an_answer_for_each_graph() -> None:
    assert list(ANSWERS) == list(CASES)
