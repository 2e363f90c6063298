"""`custom_fwd` and `custom_bwd` run a custom function under the right policy, on fake tensors."""

from __future__ import annotations

import types
from collections import namedtuple
from typing import Any

import pytest

import unamp
from unamp import Policy, current_policy, custom_bwd, custom_fwd, policy_region

O1 = Policy("O1", "bfloat16")


@pytest.fixture
def ctx() -> Any:
    return types.SimpleNamespace()


def test_without_cast_inputs_forward_and_backward_run_under_the_forwards_policy(
    fake: Any, tensor: Any, ctx: Any
) -> None:
    given = tensor("float32")

    @custom_fwd
    def forward(ctx: Any, x: Any) -> tuple[Any, object]:
        return x, current_policy()

    @custom_bwd
    def backward(ctx: Any) -> object:
        return current_policy()

    with policy_region(O1):
        assert forward(ctx, given) == (given, O1)
    assert backward(ctx) == O1
    with policy_region(Policy("O3")):
        assert backward(ctx) == O1


def test_backward_of_a_forward_outside_regions_runs_with_mixed_precision_off(
    fake: Any, ctx: Any
) -> None:
    custom_fwd(lambda ctx: None)(ctx)
    with policy_region(O1):
        assert custom_bwd(lambda ctx: unamp.is_autocast_enabled())(ctx) is False


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_cast_inputs_casts_and_switches_off(fake: Any, tensor: Any, ctx: Any, dtype: str) -> None:
    Pair = namedtuple("Pair", "left right")

    @custom_fwd(device_type="cuda", cast_inputs=dtype)
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        assert not unamp.is_autocast_enabled()
        return args, kwargs

    with policy_region(O1):
        args, kwargs = forward(
            ctx,
            tensor("float16"),
            tensor("float64"),
            tensor("int64"),
            [tensor("float32"), (tensor("bfloat16"), 3)],
            Pair(tensor("float32"), "text"),
            by_name={"x": tensor("float32")},
        )
    assert [args[0].dtype, args[1].dtype, args[2].dtype] == [dtype, "float64", "int64"]
    assert [args[3][0].dtype, args[3][1][0].dtype, args[3][1][1]] == [dtype, dtype, 3]
    assert isinstance(args[4], Pair)
    assert (args[4].left.dtype, args[4].right) == (dtype, "text")
    assert kwargs["by_name"]["x"].dtype == dtype


@pytest.mark.parametrize("policy", [None, Policy(enabled=False)])
def test_cast_inputs_has_no_effect_where_mixed_precision_is_off(
    fake: Any, tensor: Any, ctx: Any, policy: Policy | None
) -> None:
    forward = custom_fwd(lambda ctx, x: x.dtype, cast_inputs="float16")
    if policy is None:
        assert forward(ctx, tensor("float32")) == "float32"
    else:
        with policy_region(policy):
            assert forward(ctx, tensor("float32")) == "float32"


@pytest.mark.parametrize("dtype", ["float64", "int8", 3])
def test_cast_inputs_must_be_a_dtype_that_is_cast_to(dtype: Any) -> None:
    with pytest.raises(ValueError, match="valid: float16, bfloat16, float32"):
        custom_fwd(cast_inputs=dtype)
