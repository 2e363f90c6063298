"""Paddle's own AMP beside regions of unamp: the one that was opened last is in force.

`paddle.amp.auto_cast` inside a region opens a region of unamp's, with Paddle's lists and the
user's: on a CPU Paddle's own would do nothing, and on a GPU both would cast. A region inside
`paddle.amp.auto_cast` switches Paddle's own off while it is open.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import paddle
from paddle.base import core
from paddle.base.framework import _dygraph_tracer

from unamp._function_types import Function
from unamp.adapter.replacing import Replacement, as_replacement
from unamp.adapter.state import in_force
from unamp.policy import Policy, Rule
from unamp.regions import Region, auto_cast, limited_region
from unamp_paddle.casting import cast, convert
from unamp_paddle.state import FLOAT32, Plan, thread

if TYPE_CHECKING:
    from unamp.typing import DtypeLike

_OFF = core.AmpLevel.O0
_in_dynamic_mode = paddle.in_dynamic_mode


@as_replacement
def inside_regions(original: Function, /, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Wrap the generator behind `paddle.amp.auto_cast`, so that inside a region it opens one."""
    if thread.plan is None:
        yield from original(*args, **kwargs)
        return
    region = _region(*args, **kwargs)
    if region is None:
        yield
        return
    with region:
        yield


def _region(
    enable: bool = True,
    custom_white_list: Collection[str] | None = None,
    custom_black_list: Collection[str] | None = None,
    level: Any = "O1",
    dtype: DtypeLike = "float16",
    use_promote: bool = True,
) -> Region | None:
    """Return the region of unamp for arguments of `paddle.amp.auto_cast`; None for no region.

    Raises:
        ValueError: for a level, a dtype or an operation that is unknown.
    """
    if not enable:
        # `paddle.Model` opens one in every step, even where its user asked for no AMP: that must
        # not switch off the user's region.
        return (
            None
            if _opened_by("paddle.hapi.model")
            else limited_region(Policy(enabled=False), "paddle", None)
        )
    white, black = _names(custom_white_list), _names(custom_black_list)
    return auto_cast(True, white, black, level.upper(), dtype, use_promote, framework="paddle")


def _names(given: Collection[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(sorted(given or ()))


def _opened_by(module: str) -> bool:
    """Return whether the `with` statement that this thread is entering is in a module.

    Frames of this module, of `contextlib` and of `auto_cast` stand between the two.
    """
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"] in (
        __name__,
        "contextlib",
        "paddle.amp.auto_cast",
    ):
        frame = frame.f_back
    return bool(frame.f_globals.get("__name__") == module)


@as_replacement
def told_of_region(original: Function, /, *args: Any, **kwargs: Any) -> bool:
    """Wrap `paddle.is_autocast_enabled`, so that it answers for regions, too."""
    plan = thread.plan
    return original(*args, **kwargs) if plan is None else plan.policy.active


@as_replacement
def told_of_dtype(original: Function, /, *args: Any, **kwargs: Any) -> str:
    """Wrap `paddle.get_autocast_dtype`, so that it answers for regions, too."""
    plan = thread.plan
    if plan is None:
        return str(original(*args, **kwargs))
    # Paddle's own returns float16 where no AMP is on.
    return plan.policy.dtype if plan.policy.active else "float16"


def _state() -> Any:
    """Return the object with the level of Paddle's own AMP in this thread; None without one."""
    if _in_dynamic_mode():
        return _dygraph_tracer()
    return core._get_amp_attrs()  # type: ignore[attr-defined, unused-ignore]


def switched_off() -> AbstractContextManager[None] | None:
    """Switch Paddle's own AMP off, and return the context whose end switches it on again.

    None where it is off already.
    """
    state = _state()
    if state is None or state._amp_level == _OFF:
        return None
    off = without_paddles_own()
    off.__enter__()
    return off


@contextmanager
def without_paddles_own() -> Iterator[None]:
    """Switch Paddle's own AMP off while the context is open."""
    state = _state()
    level, state._amp_level = state._amp_level, _OFF
    try:
        yield
    finally:
        state._amp_level = level


@contextmanager
def under_rule(rule: Rule) -> Iterator[None]:
    """Have all operations follow one rule instead of the policy in force in this thread.

    Paddle's own AMP, where it is in force beside the policy, follows none.
    """
    plan = thread.plan
    assert plan is not None
    own = without_paddles_own() if plan.natively else nullcontext()
    with own, in_force(thread, plan.inside(rule)):
        yield


def in_float32(applies: Callable[[Plan], bool]) -> Replacement:
    """Return the decorator that has a function compute in float32 where `applies` to the plan."""

    @as_replacement
    def run(original: Function, /, *args: Any, **kwargs: Any) -> Any:
        plan = thread.plan
        if plan is None or not applies(plan):
            return original(*args, **kwargs)
        with under_rule(Rule.FP32):
            wide = {name: convert(cast, FLOAT32, value) for name, value in kwargs.items()}
            return original(*(convert(cast, FLOAT32, value) for value in args), **wide)

    return run
