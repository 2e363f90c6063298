"""`torch.cpu.amp`: `unamp.dialects.torch.amp` with the device ``"cpu"``.

torch deprecates these names with warnings; here they stay, without warnings.
"""

from __future__ import annotations

from unamp.dialects.torch import amp as _amp
from unamp.typing import DtypeLike

__all__ = ["GradScaler", "autocast"]


class autocast(_amp.autocast):  # noqa: N801 - torch's name
    """See `unamp.dialects.torch.amp.autocast`."""

    def __init__(
        self, enabled: bool = True, dtype: DtypeLike = "bfloat16", cache_enabled: bool = True
    ) -> None:
        super().__init__("cpu", dtype, enabled, cache_enabled)


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
        super().__init__("cpu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
