"""Optimizers that step inside a region: no policy is in force in a step, whatever their class.

PyTorch wraps the `step` of every class of optimizers when the first object of the class is made
(`Optimizer.profile_hook_step`). The wrapper looks two functions up at each call: `record_function`,
whose context is open around the step, and `chain`, which strings together the hooks to call before
it. The context takes the policy out of force, and puts it back whatever happens in the step. One
more hook, the last, puts it in force for the closures among the arguments, which compute the loss.

PyTorch's own AMP (the preset ``native``) stays in force, as under `torch.autocast`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch.compiler import is_compiling

from unamp._function_types import Function, Keywords
from unamp.adapter import state
from unamp.adapter.patching import missing
from unamp_torch.backward import suspended, without_policy
from unamp_torch.compiling import run_uncompiled
from unamp_torch.state import include_kernels, thread

#: The beginning of the name under which PyTorch records a step.
_STEP = "Optimizer.step#"

_CLOSURE = (
    "an optimizer's step inside a region computes with no policy in force, and its closure with "
    "the region's: call step(closure) outside of the compiled function"
)


def probe_steps() -> None:
    """Check PyTorch's wrapper of steps, except where somebody has replaced it.

    Raises:
        FrameworkNotSupported: where the wrapper does not call the functions that regions patch:
            steps would silently follow the policy.
    """
    wrapper: Any = torch.optim.Optimizer.profile_hook_step(probe_steps)
    for name in ("record_function", "chain"):
        if (
            wrapper.__globals__["__name__"] == "torch.optim.optimizer"
            and name not in wrapper.__code__.co_names
        ):
            raise missing(
                "torch", torch.__version__, f"{name} in torch.optim.Optimizer.profile_hook_step"
            )


class Step(state.Step):
    """A step in a region, in PyTorch's own context; the hook for closures finds it in `thread`.

    Args:
        recorded: PyTorch's own context of the step.
    """

    def __init__(self, recorded: AbstractContextManager[object]) -> None:
        super().__init__(thread, suspended)
        self._recorded = recorded
        self._around: state.Step | None = None

    def __enter__(self) -> Self:
        self._recorded.__enter__()
        self._around, thread.step = thread.step, super().__enter__()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        thread.step = self._around
        super().__exit__(*error)
        return self._recorded.__exit__(*error)

    def call_under_policy(self, closure: Function, /, *args: Any, **kwargs: Any) -> object:
        if is_compiling():
            torch._dynamo.graph_break(msg=_CLOSURE)
        return super().call_under_policy(closure, *args, **kwargs)

    def _suspend(self) -> None:
        super()._suspend()
        if thread.sink is not None:
            include_kernels(None)  # a trace sees the step, as it does outside regions


for _method in (Step.__enter__, Step.__exit__, Step.call_under_policy):
    run_uncompiled(_method)


# The replacements of PyTorch's own are functions without closures and defaults. Where a region
# opens inside a compiled function, dynamo writes its guards after the patches are undone, and would
# look for a replacement's closure or defaults on PyTorch's own class.
_own_record_function: Callable[..., AbstractContextManager[object]] = (
    torch.autograd.profiler.record_function
)


def suspending_steps(
    original: Callable[..., AbstractContextManager[object]],
) -> Callable[..., AbstractContextManager[object]]:
    """Replace `record_function`: the context of an optimizer's step has no policy in force."""
    return (
        _record_function
        if original is _own_record_function
        else functools.partial(_record, original)
    )


def _record_function(*args: Any, **kwargs: Any) -> AbstractContextManager[object]:
    return _record(_own_record_function, *args, **kwargs)


def _record(
    original: Callable[..., AbstractContextManager[object]], /, *args: Any, **kwargs: Any
) -> AbstractContextManager[object]:
    name = args[0] if args else kwargs.get("name")
    if not isinstance(name, str) or not name.startswith(_STEP):
        return original(*args, **kwargs)
    if is_compiling():
        return without_policy()
    plan, recorded = thread.plan, original(*args, **kwargs)
    return recorded if plan is None or plan.delegated else Step(recorded)


def handing_policy_to_closures(
    original: Callable[..., Iterable[Function]],
) -> Callable[..., Iterable[Function]]:
    """Replace `chain` where the hooks of steps are strung together.

    The last hook hands the policy to closures.
    """
    if original is itertools.chain:
        return _chain
    chained: Any = functools.partial(_string_together, original)
    chained.from_iterable = itertools.chain.from_iterable
    return chained  # type: ignore[no-any-return]


def _chain(*hooks: Iterable[Function]) -> Iterable[Function]:
    return _string_together(itertools.chain, *hooks)


_chain.from_iterable = itertools.chain.from_iterable  # type: ignore[attr-defined]


def _string_together(
    original: Callable[..., Iterable[Function]], /, *hooks: Iterable[Function]
) -> Iterable[Function]:
    return original(*hooks, (_hand_policy_to_closures,))


def _hand_policy_to_closures(
    optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[tuple[object, ...], Keywords] | None:
    """Return a step's arguments with closures under the policy around it; None without closures."""
    if not any(map(callable, (*args[1:], *kwargs.values()))):
        return None
    if is_compiling():
        torch._dynamo.graph_break(msg=_CLOSURE)
    if thread.step is None:
        return None
    handed, named = thread.step.handed(args[1:], kwargs)
    return (args[0], *handed), named
