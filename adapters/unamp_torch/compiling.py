"""Regions and `torch.compile`.

A region *around* a compiled function: dynamo guards on the autocast state of every device type. A plan that needs kernels
of ours therefore carries a token, a dtype set for the autocast of a device type that no tensor of this process has; another
plan is another token, so dynamo compiles anew instead of running a stale graph. The kernels themselves need nothing: they
run while the graph is traced, and their casts become part of it. PyTorch's cache of compiled graphs on disk outlives the
process and with it the meaning of a token: there, the policy itself becomes part of the key (`cache_key`).

A region *inside* a compiled function: `enter` and `leave` become nodes of dynamo's graph. Tracing the graph runs them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch

from unamp import __version__
from unamp.errors import NotExpressible
from unamp.policy import Policy
from unamp.regions import Region, close_down_to, open_regions
from unamp_torch.state import lock, thread

__all__ = ["Token", "cache_key", "enter", "leave", "make_capturable", "token"]

#: Device types whose autocast state can carry a token: no tensor of theirs can exist in a build for the CPU or CUDA.
_CARRIERS = ("maia", "mtia", "ipu", "hpu", "xla")

Token = tuple[tuple[str, Any, torch.dtype], ...]

_lock = lock()
_tokens: dict[object, Token] = {}


@functools.cache
def _digits() -> tuple[tuple[str, Any, torch.dtype], ...]:
    dtypes = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
    keys = {device: torch._C._parse_dispatch_key(f"Autocast{device.upper()}") for device in _CARRIERS}
    return tuple((device, keys[device], dtype) for device in _CARRIERS for dtype in dtypes)


def token(what: object) -> Token:
    """The token of a plan, the same for equal ones, different for different ones.

    Raises:
        NotExpressible: after some twenty thousand different ones in one process.
    """
    with _lock:
        if what not in _tokens:
            _tokens[what] = _numbered(len(_tokens))
        return _tokens[what]


def _numbered(number: int) -> Token:
    digits = _digits()
    pairs = (pair for pair in itertools.combinations(digits, 2) if pair[0][0] != pair[1][0])
    found = next(itertools.islice(itertools.chain(((d,) for d in digits), pairs), number, None), None)
    if found is None:
        raise NotExpressible(
            f"{number} different policies in one process: torch.compile cannot tell more apart; call torch.compiler.reset() in "
            "a new process, or use fewer policies"
        )
    return found


def cache_key(original: Callable[..., Any]) -> Callable[..., Any]:
    """`autograd_cache_key` with the policy in force as a part of the key."""

    @functools.wraps(original)
    def autograd_cache_key(*args: Any, **kwargs: Any) -> Any:
        key, *rest = original(*args, **kwargs)
        if thread.plan is not None and thread.plan.intercepts:
            key += "u" + _digest(thread.plan.policy)
        return (key, *rest)

    return autograd_cache_key


@functools.lru_cache(maxsize=256)
def _digest(policy: Policy) -> str:
    return hashlib.sha256(f"{__version__} {policy!r}".encode()).hexdigest()


# --- inside a compiled function ---------------------------------------------------------------------------------------------

_captured: dict[int, Region] = {}
_keys: dict[Region, int] = {}


def make_capturable(region: Region) -> int:
    """A number under which a graph can open a region; regions that a graph may open are kept for good."""
    _allow_in_graph()
    with _lock:
        key = _keys.setdefault(region, len(_keys))
        _captured[key] = region
    return key


def enter(key: int) -> None:
    """Open a region, as a node of a graph."""
    depth = open_regions()
    _captured[key].__enter__()
    _close_when_tracing_ends(depth)


def leave(key: int) -> None:
    """Close a region, as a node of a graph."""
    _captured[key].__exit__(None, None, None)


def _close_when_tracing_ends(depth: int) -> None:
    # Tracing may end between the two nodes, by an error in the traced code or a graph break.
    translation = sys.modules.get("torch._dynamo.symbolic_convert")
    tx = getattr(translation.tls, "current_tx", None) if translation is not None else None
    if tx is not None:
        tx.output.add_cleanup_hook(lambda: close_down_to(depth))


@functools.cache
def _allow_in_graph() -> None:
    import torch._dynamo

    for node in (enter, leave):
        torch._dynamo.allow_in_graph(node)
        torch.fx.has_side_effect(node)
