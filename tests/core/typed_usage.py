"""A user's code, for type checkers: `mypy` reads this file, nothing runs it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, assert_type

import unamp
from unamp.dialects.torch.amp import GradScaler


class Network: ...


class Optimizer: ...


assert_type(unamp.autocast(dtype="bfloat16"), unamp.Region)
assert_type(unamp.auto_cast(level="O2"), unamp.Region)
assert_type(unamp.policy_region(unamp.Policy()), unamp.Region)


@unamp.autocast(dtype="bfloat16")
def function(x: float, *, n: int = 1) -> float:
    return x * n


@unamp.auto_cast()
def generator() -> Iterator[int]:
    yield 1


@unamp.policy_region(unamp.Policy("O2"))
async def coroutine(x: str) -> str:
    return x


with unamp.autocast(enabled=False) as region:
    assert_type(region.policy, unamp.Policy)
assert_type(function(1.0, n=2), float)
assert_type(generator(), Iterator[int])
waiting: Coroutine[Any, Any, str] = coroutine("x")


class Function:
    @staticmethod
    @unamp.custom_fwd(cast_inputs="float32")
    def forward(ctx: object, x: float) -> float:
        return x

    @staticmethod
    @unamp.custom_bwd
    def backward(ctx: object, gradient: float) -> float:
        return gradient


given: Callable[[object, float], float] = Function.forward
assert_type(Function.backward(None, 1.0), float)

assert_type(unamp.decorate(Network()), Network)
assert_type(unamp.decorate(Network(), Optimizer(), level="O2"), tuple[Network, Optimizer])
assert_type(unamp.auto_mixed_precision(Network(), "O2"), Network)
assert_type(unamp.current_policy(), unamp.Policy | None)
assert_type(unamp.Policy().decide("add"), unamp.Rule)
assert_type(unamp.GradScaler().step(Optimizer()), bool)
assert_type(GradScaler("cpu").get_scale(), float)
unamp.autocats  # type: ignore[attr-defined] # noqa: B018 - a slip of the pen is found

tuned = unamp.tune(function, None, [1.0, 2.0], by="operation", progress=print)
assert_type(tuned, unamp.Tuned)
assert_type(tuned.policy, unamp.Policy)
assert_type(tuned.layers, unamp.LayerRules)
assert_type(tuned.report.held_out, float | None)
