"""`torch.cuda.amp`: `unamp.dialects.torch.amp` with the device ``"cuda"``.

torch deprecates these names with warnings; here they stay, without warnings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unamp.dialects._in_use import has_gpu
from unamp.dialects.torch import amp as _amp
from unamp.typing import DtypeLike

__all__ = ["GradScaler", "amp_definitely_not_available", "autocast", "custom_bwd", "custom_fwd"]


def amp_definitely_not_available() -> bool:
    """Return whether no framework that is in use finds a GPU."""
    return not has_gpu()


class autocast(_amp.autocast):  # noqa: N801 - torch's name
    """See `unamp.dialects.torch.amp.autocast`."""

    def __init__(
        self, enabled: bool = True, dtype: DtypeLike = "float16", cache_enabled: bool = True
    ) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(_amp.GradScaler):
    """See `unamp.dialects.torch.amp.GradScaler`."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            "cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, cast_inputs: DtypeLike | None = None
) -> Callable[..., Any]:
    """See `unamp.dialects.torch.amp.custom_fwd`."""
    return _amp.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[..., Any]) -> Callable[..., Any]:
    """See `unamp.dialects.torch.amp.custom_bwd`."""
    return _amp.custom_bwd(bwd, device_type="cuda")
