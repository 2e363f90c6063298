"""`torch.amp` for every framework.

Differences from torch's own:

- Devices are ``"cpu"`` and ``"cuda"`` for every framework's tensors, and for torch's tensors every
  device for which torch has an autocast. A dtype may be a string or any framework's object.
- On torch's tensors a region is torch's own autocast (the preset ``native``, which is ``torch-mps``
  for ``"mps"`` and ``torch-cuda`` for ``"xpu"``); on others it follows the same lists (the presets
  ``torch-cpu`` and ``torch-cuda``).
- Errors that torch raises late, or not at all, are raised at once.

Semantics: https://docs.pytorch.org/docs/stable/amp.html (torch 2.13)
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import unamp
from unamp import amp_warnings
from unamp._compiler_marks import not_converted, once_per_trace
from unamp._region_decorator import decorate
from unamp.adapter.registry import adapters_in_use, check_tensors_suitable, unsuitable
from unamp.dialects._in_use import has_gpu
from unamp.dialects.torch._scaler import GradScaler
from unamp.dtypes import LOW_DTYPES, POLICY_DTYPES, dtype_name
from unamp.regions import innermost_region
from unamp.typing import DtypeLike, PresetName

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]

_DEVICES = {"cpu": "cpu", "cuda": "gpu"}  # torch's word, and ours

#: The other devices that torch knows.
_OTHER_DEVICES = frozenset(
    (
        "ipu xpu mkldnn opengl opencl ideep hip ve fpga maia xla lazy vulkan mps meta hpu mtia "
        "privateuseone"
    ).split()
)


def is_autocast_available(device_type: str) -> bool:
    """Return whether `autocast` takes a device.

    It takes ``"cpu"``, ``"cuda"`` and, where torch is imported, the devices of torch's `autocast`.

    Raises:
        TypeError: for a value that is no string.
        RuntimeError: for a string that is no device of torch's.
    """
    if not isinstance(device_type, str):
        raise TypeError(f"device_type must be a string, not {type(device_type).__name__}")
    kind = _known(device_type)
    return kind in _DEVICES or _has_autocast(kind)


class autocast:  # noqa: N801 - torch's name
    """A region in which tensors on one kind of device compute under torch's rules.

    It is a context manager and a decorator.

    Args:
        device_type: ``"cpu"`` or ``"cuda"``. Without a GPU a region for ``"cuda"`` warns and does
            nothing, as torch's. On another device of torch's (``"mps"``, ``"xpu"``) the region is
            torch's own, for torch's tensors alone.
        dtype: the low precision; None is that of the region around it, else float16 for ``"cuda"``
            and bfloat16 for ``"cpu"``. Any other dtype warns and switches the region off.
        enabled: False switches mixed precision off inside.
        cache_enabled: whether a float32 parameter is cast once in the outermost region; None is as
            around it, else yes.

    Raises:
        ValueError: where ``device_type`` is no string.
        RuntimeError: for another device.
    """

    def __init__(
        self,
        device_type: str,
        dtype: DtypeLike | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        device, low, on, cache = _settings(device_type, dtype, enabled, cache_enabled)
        self.device = device_type
        self.fast_dtype = low if dtype is None else dtype
        self._arguments = (device, low, on, cache)
        self._open: list[list[unamp.Region]] = []

    def __enter__(self) -> autocast:
        opened: list[unamp.Region] = []
        self._open.append(opened)
        try:
            for region in _regions(*self._arguments):
                region.__enter__()
                opened.append(region)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for region in reversed(self._open.pop()):
            region.__exit__(kind, error, trace)

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function: its body runs inside the region.

        Raises:
            TypeError: for what cannot be called.
        """
        if not callable(func):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(func).__name__}; as a "
                "context manager it is `with autocast(device_type=...):`"
            )
        return decorate(self._again, func, self, _check_given)

    def regions(self) -> list[Any]:
        """Return the regions to open together, innermost last, for the frameworks now in use."""
        return _regions(*self._arguments)

    def _again(self) -> autocast:
        made = object.__new__(autocast)
        made._arguments, made._open = self._arguments, []
        return made


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: DtypeLike | None = None
) -> Callable[..., Any]:
    """Decorate a custom autograd function's ``forward``; see `unamp.custom_fwd`.

    `unamp.custom_fwd` covers every device; ``device_type`` is only checked to be a string.

    Raises:
        ValueError: where ``device_type`` is no string.
    """
    _check_string(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    return unamp.custom_fwd(fwd, cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Callable[..., Any]:
    """Decorate the ``backward`` that goes with a `custom_fwd`; see `unamp.custom_bwd`.

    Raises:
        ValueError: where ``device_type`` is no string.
    """
    _check_string(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)
    return unamp.custom_bwd(bwd)


def _regions(device: str | None, dtype: str, enabled: bool, cache: bool) -> list[unamp.Region]:
    """Return the regions to open, for the frameworks that are in use by now."""
    if device is None:
        return []
    if device not in _DEVICES.values():
        return [unamp.autocast(device, dtype, enabled, cache, preset="native", framework="torch")]
    if enabled:
        _warn_of_left_out()
    lists: PresetName = "torch-cpu" if device == "cpu" else "torch-cuda"
    presets: list[tuple[PresetName, str | None]] = [
        ("native" if name == "torch" else lists, name) for name in _in_use()
    ]
    return [
        unamp.autocast(device, dtype, enabled, cache, preset=preset, framework=name)
        for preset, name in presets or [(lists, None)]
    ]


@once_per_trace
def _warn_of_left_out() -> None:
    # Each of the regions is one framework's, and warns of no others.
    if adapters := adapters_in_use():
        amp_warnings.left_out(unsuitable(), adapters)


@not_converted
def _check_given(mark: Any, given: object) -> None:
    """Do as `unamp.regions.check_given`."""
    device, _, enabled, _ = mark._arguments
    if enabled and device in _DEVICES.values() and adapters_in_use() and unsuitable():
        check_tensors_suitable(given)


@once_per_trace
def _in_use() -> tuple[str, ...]:
    return tuple(adapter.framework for adapter in adapters_in_use())


@not_converted
@once_per_trace
def _settings(
    device_type: object, dtype: DtypeLike | None, enabled: bool, cache_enabled: bool | None
) -> tuple[str | None, str, bool, bool]:
    """Return the device (None if absent), the low dtype, and whether region and cache are on."""
    _check_string(device_type)
    kind = _known(device_type)
    if kind not in _DEVICES and not _has_autocast(kind):
        raise RuntimeError(
            f"unsupported autocast device_type {device_type!r}; unamp's regions cover 'cpu' and "
            "'cuda', and with torch imported the devices of torch.autocast"
        )
    device = _DEVICES.get(kind, kind)
    around = innermost_region()
    inherited = around.policy if around is not None and around.device in (None, device) else None
    if cache_enabled is None:
        cache_enabled = around is None or around.policy.cache
    usual = inherited.dtype if inherited is not None else _usual_dtype(kind)
    low = usual if dtype is None else dtype_name(dtype)
    missing = (
        not has_gpu()
        if device == "gpu"
        else device not in _DEVICES.values() and not _is_there(kind)
    )
    if enabled and missing:
        _warn(f"{kind.upper()} is not available. Disabling autocast.")
    # torch's autocast for CUDA alone checks no dtype
    elif enabled and low not in (POLICY_DTYPES if kind == "cuda" else LOW_DTYPES):
        _warn(
            f"In {kind.upper()} autocast, but the target dtype {dtype} is not supported. "
            "Disabling autocast."
        )
        enabled = False
    return (
        None if missing else device,
        low if low in POLICY_DTYPES else usual,
        bool(enabled),
        bool(cache_enabled),
    )


def _torch() -> Any:
    """Return torch where it is imported, else None."""
    return sys.modules.get("torch") if "torch" in _in_use() else None


def _has_autocast(kind: str) -> bool:
    torch = _torch()
    return torch is not None and bool(torch.amp.is_autocast_available(kind))


def _is_there(kind: str) -> bool:
    found = _torch().accelerator.current_accelerator()
    return found is not None and found.type == kind


def _usual_dtype(kind: str) -> str:
    if kind in _DEVICES:
        return "float16" if kind == "cuda" else "bfloat16"
    usual: str = str(_torch().get_autocast_dtype(kind)).removeprefix("torch.")
    return usual


def _check_string(device_type: object) -> None:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")


def _known(device_type: object) -> str:
    """Return a device's kind: ``"cuda"`` for ``"cuda:1"``."""
    kind, _, index = str(device_type).partition(":")
    torch = _torch()
    own = set() if torch is None else {torch._C._get_privateuse1_backend_name()}
    if kind not in _DEVICES.keys() | _OTHER_DEVICES | own or not (index or "0").isdigit():
        raise RuntimeError(
            f"unknown device_type {device_type!r}; "
            "torch's devices are named cpu, cuda and so on, in small letters"
        )
    return kind


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
