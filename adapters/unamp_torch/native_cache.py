"""Native autocast's cache of cast parameters, which all threads share, whatever they cast to."""

from __future__ import annotations

import torch

from unamp.adapter import major_minor
from unamp_torch.compiled import library
from unamp_torch.state import lock

#: Before 2.11 native autocast keeps a cast made under `torch.no_grad` for later uses, which then
#: have no gradient.
_KEEPS_WITHOUT_GRADIENT = major_minor(torch.__version__) < (2, 11)

_lock = lock()
_sharing: dict[
    torch.dtype, int
] = {}  # the number of regions that use the cache, by low dtype: there is one dtype at a time


def start_sharing(dtype: torch.dtype, /) -> bool:
    """Use the cache for casts to `dtype` from now on; return whether it can be used."""
    with _lock:
        if _KEEPS_WITHOUT_GRADIENT or (_sharing and dtype not in _sharing):
            return False
        _sharing[dtype] = _sharing.get(dtype, 0) + 1
        return True


def stop_sharing(dtype: torch.dtype, /) -> None:
    """Release the cache after `start_sharing` returned True; the last release clears it."""
    with _lock:
        _sharing[dtype] -= 1
        if not _sharing[dtype]:
            del _sharing[dtype]
            torch.clear_autocast_cache()


def forget_other_threads() -> None:
    """Forget, in a forked process, the regions of other threads."""
    _sharing.clear()


if library is not None:
    start_sharing, stop_sharing = library.start_sharing, library.stop_sharing
