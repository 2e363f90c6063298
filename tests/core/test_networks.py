"""`auto_mixed_precision` checks its arguments, casts parameters and wraps a network."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import unamp
from unamp.policy import Policy


@pytest.fixture
def network(fake: Any) -> Any:
    """Return a network of the fake framework."""
    return fake.make_network()


def test_O0_is_the_network_itself(network: Any) -> None:  # noqa: N802
    assert unamp.auto_mixed_precision(network) is network


@pytest.mark.parametrize(
    ("level", "inputs", "widened"),
    [("O1", "float32", True), ("O2", "bfloat16", False), ("O3", "bfloat16", False)],
)
def test_inputs_are_cast_where_the_level_casts_all_and_results_are_float32(
    network: Any, tensor: Any, level: str, inputs: str, widened: bool
) -> None:
    result = unamp.auto_mixed_precision(network, level, "bfloat16").forward(
        tensor("float32"), scale=tensor("float16")
    )
    policy = Policy(level, "bfloat16", preset="mindspore", widen_results=widened)
    assert network.seen == [(inputs, policy), ("float16" if level == "O1" else inputs, policy)]
    assert [out.dtype for out in result["out"]] == ["float32"]


def test_other_dtypes_are_never_cast(network: Any, tensor: Any) -> None:
    result = unamp.auto_mixed_precision(network, "O3").forward(tensor("float64"), tensor("int64"))
    assert (
        [dtype for dtype, _ in network.seen]
        == [out.dtype for out in result["out"]]
        == ["float64", "int64"]
    )


def test_the_wrapped_network_shares_everything_and_the_given_one_stays_as_it_was(
    network: Any, tensor: Any
) -> None:
    wrapped = unamp.auto_mixed_precision(network, "O2")
    assert isinstance(wrapped, type(network))
    assert vars(wrapped) is vars(network)
    network.forward(tensor("float32"))
    assert network.seen == [("float32", None)]


def test_wrapping_again_replaces_the_policy(network: Any, tensor: Any) -> None:
    unamp.auto_mixed_precision(unamp.auto_mixed_precision(network, "O2"), "O3", "bfloat16").forward(
        tensor("float32")
    )
    assert network.seen == [("bfloat16", Policy("O3", "bfloat16", preset="mindspore"))]


def test_a_copy_has_a_state_of_its_own(network: Any, tensor: Any) -> None:
    copied = copy.deepcopy(unamp.auto_mixed_precision(network, "O2"))
    copied.forward(tensor("float32"))
    assert copied.seen == [("float16", Policy("O2", preset="mindspore"))]
    assert network.seen == []


def test_the_preset_can_be_chosen(network: Any, tensor: Any) -> None:
    unamp.auto_mixed_precision(network, "O2", preset="unamp").forward(tensor("float32"))
    assert network.seen[0][1].preset == "unamp"


@pytest.mark.parametrize("level", ["O4", "OD", "auto", "o1", 1, None])
def test_another_level_is_an_error(network: Any, level: Any) -> None:
    with pytest.raises(ValueError, match="unknown amp_level .*; valid: O0, O1, O2, O3"):
        unamp.auto_mixed_precision(network, level)


def test_in_float32_a_network_computes_and_answers_in_float32(network: Any, tensor: Any) -> None:
    result = unamp.auto_mixed_precision(network, "O2", "float32").forward(tensor("bfloat16"))
    assert network.seen == [("float32", Policy("O2", "float32", preset="mindspore"))]
    assert [out.dtype for out in result["out"]] == ["float32"]


@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_another_dtype_is_an_error(network: Any, dtype: str) -> None:
    for level in ("O0", "O1"):
        with pytest.raises(ValueError, match=dtype):
            unamp.auto_mixed_precision(network, level, dtype)


def test_what_is_no_network_is_an_error_that_says_what_is(network: Any) -> None:
    for other in (len, type(network), "network", None):
        with pytest.raises(TypeError, match=r"torch.nn.Module, paddle.nn.Layer, mindspore.nn.Cell"):
            unamp.auto_mixed_precision(other, "O1")
