"""Native autocast's cache of cast parameters, which all threads of a process share, whatever dtype each casts to."""

from __future__ import annotations

import torch

from unamp.adapter import major_minor
from unamp_torch.compiled import library
from unamp_torch.state import lock

__all__ = ["forget_other_threads", "regions_lock", "start", "start_sharing", "stop", "stop_sharing"]

#: Before 2.11 native autocast keeps a cast made under `torch.no_grad` for later uses, which then have no gradient.
_KEEPS_WITHOUT_GRADIENT = major_minor(torch.__version__) < (2, 11)

#: Held while a region opens or closes: one for this cache and for `patches`, since each lock takes time.
regions_lock = lock()

_sharing: dict[torch.dtype, int] = {}  # how many regions use it, by low dtype


def start_sharing(dtype: torch.dtype, /) -> bool:
    """Use the cache for casts to `dtype` from now on, and return True; return False where it cannot be used."""
    with regions_lock:
        return start(dtype)


def start(dtype: torch.dtype) -> bool:
    """Do what `start_sharing` does, for who holds the lock."""
    if not _sharing:
        if _KEEPS_WITHOUT_GRADIENT:
            return False
        _sharing[dtype] = 1
    elif dtype in _sharing:
        _sharing[dtype] += 1
    else:
        return False
    return True


def stop_sharing(dtype: torch.dtype, /) -> None:
    """Use it no longer, where `start_sharing` returned True; the last one clears it."""
    with regions_lock:
        if stop(dtype):
            torch.clear_autocast_cache()


def stop(dtype: torch.dtype) -> bool:
    """Use it no longer, for who holds the lock; return whether nobody does, so that it has to be cleared."""
    if _sharing[dtype] > 1:
        _sharing[dtype] -= 1
        return False
    del _sharing[dtype]
    return True


def forget_other_threads() -> None:
    """Let go, in a forked process, of what other threads use."""
    _sharing.clear()


if library is not None:
    start_sharing, stop_sharing = library.start_sharing, library.stop_sharing
