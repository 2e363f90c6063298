"""`paddle.amp.auto_cast` and its relatives."""

from __future__ import annotations

from typing import Any

import unamp
from unamp._compiler_marks import not_converted, once_per_trace
from unamp.dtypes import LOW_DTYPES, dtype_name
from unamp.typing import DtypeLike, Level, OperationsLike

_LEVELS = ("O0", "OD", "O1", "O2")


@not_converted
def auto_cast(
    enable: bool = True,
    custom_white_list: OperationsLike | None = None,
    custom_black_list: OperationsLike | None = None,
    level: str = "O1",
    dtype: DtypeLike = "float16",
    use_promote: bool = True,
) -> Any:
    """Return a region as Paddle 3.3 makes it, wherever the tensors are; see `unamp.auto_cast`.

    At O2 an operation on no list runs in float32 where one of its inputs is, as in Paddle 3.3: make
    parameters low with `decorate`, or say ``use_promote=False`` to have everything cast.

    Args:
        enable: False switches mixed precision off inside.
        custom_white_list, custom_black_list: operations to allow and to deny, in Paddle's names or
            in any other.
        level: ``"O0"``, ``"OD"``, ``"O1"`` or ``"O2"``, in small letters too.
        dtype: ``"float16"`` or ``"bfloat16"``, or a framework's own.
        use_promote: see above.

    Raises:
        ValueError: for another level or dtype, and for an operation unknown or in both lists.
    """
    level, low = _checked(enable, level, dtype)
    return unamp.auto_cast(enable, custom_white_list, custom_black_list, level, low, use_promote)


amp_guard = auto_cast


@not_converted
def autocast(
    device_type: str | None,
    dtype: DtypeLike = "float16",
    enabled: bool = True,
    cache_enabled: bool = True,
) -> Any:
    """Return `auto_cast` with torch's arguments.

    As in Paddle, ``device_type`` and ``cache_enabled`` have no effect.
    """
    return auto_cast(enable=enabled, dtype=dtype)


def is_autocast_enabled(device_type: object = None) -> bool:
    """Return whether mixed precision is on in this thread; as in Paddle, for every device alike."""
    return unamp.is_autocast_enabled()


def get_autocast_dtype(device_type: object = None) -> str:
    """Return the low precision in this thread; as in Paddle, ``"float16"`` if none is in force."""
    return unamp.get_autocast_dtype() or "float16"


get_autocast_cpu_dtype = get_autocast_gpu_dtype = get_autocast_dtype


@once_per_trace
def _checked(enable: bool, stated: str, dtype: DtypeLike) -> tuple[Level, str]:
    level: Any = stated.upper()
    if level not in _LEVELS:
        raise ValueError(f"level should be O0, OD, O1 or O2, not {level!r}.")
    low = dtype_name(dtype)
    if low in LOW_DTYPES:
        return level, low
    if enable:
        raise ValueError(f"If enable amp, dtype should be 'float16' or 'bfloat16', not {dtype!r}.")
    return level, "float16"
