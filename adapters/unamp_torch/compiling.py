"""Regions and `torch.compile`.

A region *around* a compiled function: dynamo guards on the autocast state of every device type. A
plan that needs kernels of ours therefore has a guard: a dtype, set for the autocast of a device
type that no tensor of this process has. Another plan has another guard, so dynamo compiles anew
instead of running a stale graph. The kernels themselves need nothing: they run while the graph is
traced, and their casts become part of it. PyTorch's cache of compiled graphs on disk outlives the
process, and so the meaning of a guard: there, the policy itself becomes part of the key
(`cache_key`).

A region *inside* a compiled function: `enter` and `leave` become nodes of dynamo's graph, which run
while the graph is traced.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch.compiler import is_compiling
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from unamp import __version__
from unamp._function_types import Function
from unamp.adapter.registered import CALLED_AS_THEY_ARE
from unamp.adapter.replacing import as_replacement
from unamp.errors import NotExpressible
from unamp.policy import KEPT_POLICIES, Policy
from unamp.regions import Region, auto_cast, autocast, close_down_to, open_regions, policy_region
from unamp_torch.state import Guard, dispatch_key, lock, thread

#: Device types whose autocast state can carry a guard: no tensor of theirs can exist in a build for
#: the CPU or CUDA.
_CARRIERS = ("maia", "mtia", "ipu", "hpu", "xla")

_lock = lock()
_guards: dict[object, Guard] = {}


@functools.cache
def _new_guards() -> Iterator[Guard]:
    """Yield the guards that no plan has yet, the cheapest first.

    Switching a device type on costs less than setting a dtype, too.
    """
    dtypes = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
    keys = [
        (device, dispatch_key(f"Autocast{device.upper()}"), torch.get_autocast_dtype(device))
        for device in _CARRIERS
    ]
    digits = [(device, key, dtype, usual) for device, key, usual in keys for dtype in dtypes]
    digits.sort(key=lambda digit: digit[2] is not digit[3])
    pairs = (pair for pair in itertools.combinations(digits, 2) if pair[0][0] != pair[1][0])
    return itertools.chain(((digit,) for digit in digits), pairs)


def guard(what: object) -> Guard:
    """Return the guard of a plan: the same guard for equal `what`, and no other plan's.

    Raises:
        NotExpressible: after some twenty thousand different guards in one process.
    """
    with _lock:
        if what not in _guards:
            found = next(_new_guards(), None)
            if found is None:
                raise NotExpressible(
                    f"{len(_guards)} different policies in one process: torch.compile cannot tell "
                    "more apart; call torch.compiler.reset() in a new process, "
                    "or use fewer policies"
                )
            _guards[what] = found
        return _guards[what]


@as_replacement
def cache_key(
    original: Callable[..., tuple[str, list[str]]], /, *args: Any, **kwargs: Any
) -> tuple[object, ...]:
    """Wrap `autograd_cache_key` so that the policy in force is a part of the key."""
    key, *rest = original(*args, **kwargs)
    if thread.plan is not None and thread.plan.intercepted:
        key += "u" + _digest(thread.plan.policy)
    return (key, *rest)


@functools.lru_cache(KEPT_POLICIES)
def _digest(policy: Policy) -> str:
    return hashlib.sha256(f"{__version__} {policy!r}".encode()).hexdigest()


def run_uncompiled(function: Function) -> None:
    """Keep dynamo from compiling a function, and functions that it calls, as frames of their own.

    After a graph break dynamo compiles every frame that runs next. Our functions change the state
    of the thread, which dynamo would not notice. (Dynamo can still trace into them.)
    """
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))


for _entrance in (
    Region.__enter__,
    Region.__exit__,
    Region.here,
    autocast,
    auto_cast,
    policy_region,
):
    run_uncompiled(_entrance)


_called_while_tracing: set[Function] = set()


def call_while_tracing(function: Function) -> None:
    """Make dynamo call a function while it traces, instead of tracing into the thread's state.

    Where dynamo is not imported nothing is done: its import takes a second, and slows every
    operation down.
    """
    if "torch._dynamo" in sys.modules and function not in _called_while_tracing:
        torch.compiler.allow_in_graph(function)
        if hasattr(function, "__code__"):
            # where its result cannot be in a graph, it is called between two graphs
            run_uncompiled(function)
        _called_while_tracing.add(function)


def call_registered_while_tracing() -> None:
    """Make dynamo call every registered operation while it traces."""
    for function in CALLED_AS_THEY_ARE:
        call_while_tracing(function)


def calling_registered(original: Function) -> Function:
    """Wrap dynamo's `allow_in_graph` once dynamo is imported; tell it of registered operations."""
    call_registered_while_tracing()

    @functools.wraps(original)
    def allow_in_graph(function: object) -> object:
        return original(function)

    return allow_in_graph


# --- inside a compiled function -------------------------------------------------------------------

_Region = AbstractContextManager[Any, bool | None]
_captured: list[_Region] = []  # kept for good: graphs open them by their positions here

#: The names of attributes that regions patch; `unamp_torch.patches` adds them.
patched_names: set[str] = set()


def compiling() -> bool:
    """Return whether torch's compiler is tracing the calling code.

    Raises:
        NotExpressible: where `torch.fx.symbolic_trace` is tracing. It records calls, and no region
            around them: the graph would silently compute outside of the region.
    """
    if is_compiling():
        return True
    if is_fx_symbolic_tracing() and not _records_operators():
        raise NotExpressible(
            "torch.fx.symbolic_trace records no region: "
            "open it around the graph where that is called"
        )
    return False


def is_recorded() -> bool:
    """Return whether a compiler, an export or a PyTorch mode records what this thread computes."""
    if torch._C._get_tracing_state() is not None:
        return True
    return is_compiling() or is_fx_symbolic_tracing() or torch._C._len_torch_dispatch_stack() > 0


def _records_operators() -> bool:
    """Return whether `make_fx` is tracing, which records operators, and with them the casts."""
    recorder = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return recorder is not None and recorder.get_proxy_mode() is not None


def make_capturable(region: _Region) -> int:
    """Return the number by which a graph can open a region; the region is kept for good."""
    _allow_in_graph()
    with _lock:
        if region not in _captured:
            _captured.append(region)
        return _captured.index(region)


def enter(key: int) -> None:
    """Open a region, as a node of a graph."""
    depth = open_regions()
    _captured[key].__enter__()
    if (tx := _tracing_now()) is not None:
        # Tracing may end between the two nodes, by an error or a graph break.
        tx.output.add_cleanup_hook(lambda: close_down_to(depth))
        _forget_what_was_patched(tx.output.variable_tracker_cache)


def leave(key: int) -> None:
    """Close a region, as a node of a graph."""
    _captured[key].__exit__(None, None, None)


def trace_again() -> None:
    """Restart dynamo where it is tracing, because functions that it has seen are now patched."""
    if _tracing_now() is not None:
        # after the plain `RestartAnalysis` it would repeat its decisions
        from torch._dynamo.exc import UnspecializeRestartAnalysis

        raise UnspecializeRestartAnalysis(restart_reason="functions have been patched since")


def _tracing_now() -> Any:
    """Return dynamo's translator of the function that it traces; None where it traces none."""
    translation = sys.modules.get("torch._dynamo.symbolic_convert")
    return getattr(translation.tls, "current_tx", None) if translation is not None else None


def _forget_what_was_patched(known: object) -> None:
    """Make dynamo look again at the attributes that the region has patched.

    From 2.13 on it remembers a value by the attribute's place alone.
    """
    if isinstance(known, dict):
        for source in [
            source for source in known if getattr(source, "member", None) in patched_names
        ]:
            del known[source]


@functools.cache
def _allow_in_graph() -> None:
    import torch._dynamo

    for node in (enter, leave):
        torch._dynamo.allow_in_graph(node)
        torch.fx.has_side_effect(node)
    call_registered_while_tracing()
