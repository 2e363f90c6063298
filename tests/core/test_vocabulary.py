"""Spellings resolve to canonical names; the error about an unknown one helps."""

from __future__ import annotations

import pickle

import pytest
import summed
from hypothesis import given
from hypothesis import strategies as st

from unamp import vocabulary
from unamp.vocabulary import FRAMEWORKS, Operation, Vocabulary

OPERATIONS = list(vocabulary().values())


@pytest.fixture
def small() -> Vocabulary:
    """Return two operations for which frameworks use the same words differently."""
    return Vocabulary(
        {
            "mul": Operation(
                "mul",
                "elementwise",
                spellings={"torch": ("mul", "times"), "paddle": ("elementwise_mul",)},
            ),
            "matmul": Operation(
                "matmul",
                "matmul",
                spellings={"torch": ("matmul",), "paddle": ("matmul_v2", "mul", "times")},
            ),
        }
    )


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("matmul", "matmul"),
        ("matmul_v2", "matmul"),
        ("elementwise_add", "add"),
        ("AddV2", "add"),
        ("nn.Dense", "linear"),
        ("mindspore.nn.Dense", "linear"),
        ("ms.nn.Dense", "linear"),
        ("ops.Add", "add"),
        ("torch.nn.functional.linear", "linear"),
        ("torch.conv2d", "conv2d"),
        ("paddle.matmul_v2", "matmul"),
        ("tf.nn.softmax", "softmax"),
        ("tensorflow.nn.softmax", "softmax"),
    ],
)
def test_spellings_that_people_write(spelling: str, canonical: str) -> None:
    assert vocabulary().resolve(spelling) == canonical


@given(st.sampled_from(OPERATIONS))
def test_a_canonical_name_means_itself(op: Operation) -> None:
    assert vocabulary().resolve(op.name) == op.name


@given(st.sampled_from(OPERATIONS))
def test_every_spelling_with_its_framework_means_its_operation(op: Operation) -> None:
    for framework, spellings in op.spellings.items():
        for spelling in spellings:
            assert vocabulary().resolve(f"{framework}.{spelling}") == op.name
            assert vocabulary().resolve(spelling, prefer=framework) == op.name


def test_a_word_that_means_two_things_is_refused_with_both(small: Vocabulary) -> None:
    with pytest.raises(
        ValueError,
        match="'times' means several things: torch.times is 'mul', paddle.times is 'matmul'",
    ):
        small.resolve("times")
    assert small.resolve("torch.times") == "mul"
    assert small.resolve("paddle.times") == "matmul"
    assert small.resolve("times", prefer="paddle") == "matmul"


def test_a_canonical_name_comes_before_a_frameworks_spelling_unless_that_is_preferred(
    small: Vocabulary,
) -> None:
    assert small.resolve("mul") == "mul"
    assert small.resolve("mul", prefer="paddle") == "matmul"


def test_a_preferred_framework_without_the_word_leaves_it_to_the_others(small: Vocabulary) -> None:
    assert small.resolve("matmul_v2", prefer="torch") == "matmul"


@pytest.mark.parametrize(
    ("name", "near"),
    [("layernorm", "layer_norm"), ("torch.nn.functional.lineer", "linear"), ("sofmax", "softmax")],
)
def test_an_unknown_name_gets_the_closest_known_ones(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"unknown operation '{name}'; did you mean .*{near}"):
        vocabulary().resolve(name)


@pytest.mark.parametrize("name", ["", "zzzzzzzzz", "torch.", "numpy.add_v7_qqqqqqqqqqqq"])
def test_an_unknown_name_without_neighbours_gets_the_command_that_lists_all(name: str) -> None:
    with pytest.raises(ValueError, match="`unamp ops` lists all of them"):
        vocabulary().resolve(name)


def test_the_vocabulary_is_read_once_and_cannot_be_changed() -> None:
    assert vocabulary() is vocabulary()
    with pytest.raises(TypeError):
        vocabulary()["new"] = OPERATIONS[0]  # type: ignore[index]
    assert len(vocabulary()) == len(OPERATIONS)
    assert "linear" in vocabulary()
    assert "nn.Linear" not in vocabulary()


def test_operations_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(OPERATIONS)) == OPERATIONS


def test_operations_that_keep_their_meaning() -> None:
    assert vocabulary()["reshape"].keeps_its_meaning
    assert vocabulary()["zeros"].keeps_its_meaning
    assert not vocabulary()["linear"].keeps_its_meaning


def test_frameworks_are_the_ones_that_operations_are_spelled_in() -> None:
    # JAX's adapter brings its own spellings
    assert {framework for op in OPERATIONS for framework in op.spellings} == {*FRAMEWORKS, "jax"}


def test_every_reduction_is_a_sum_or_known_to_be_none() -> None:
    assert set(vocabulary().groups["reduction"]) - summed.SUMS.keys() == summed.OTHERS
