"""The registration of kernels with PyTorch's dispatcher, and what the compiled ones have to be told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from unamp_torch import calls, writes
from unamp_torch.calls import Action, Banned
from unamp_torch.compiled import Library, library
from unamp_torch.compiling import run_uncompiled
from unamp_torch.control_flow import let_pass
from unamp_torch.listing import Operator
from unamp_torch.state import CPU, CUDA, KERNEL_KEYS, META_IN_PYTHON, TRACED, KernelKey, autocast_key, lock

_ATEN = "aten"

_lock = lock()
_fallthrough: list[torch.library.Library] = []
_registrations: dict[tuple[KernelKey, str], torch.library.Library] = {}  # by the operators' namespace
_installed: set[tuple[KernelKey, str]] = set()


def install(wanted: Iterable[Operator], key: KernelKey) -> None:
    """Register kernels for operators, once and for good: taking a kernel away under running threads crashes PyTorch.

    With the first of a key come those for operators that write to a tensor.
    """
    new = [operator for operator in wanted if (key, operator.name) not in _installed]
    if not new and (key, _ATEN) in _registrations:
        return
    with _lock:
        if (key, _ATEN) not in _registrations:
            # Operators without a kernel on our key go on to the next one, instead of raising.
            _fallthrough.append(torch.library.Library("_", "IMPL"))
            _fallthrough[-1].fallback(torch.library.fallthrough_kernel, key.name)
            _registrations[key, _ATEN] = torch.library.Library(_ATEN, "IMPL", key.name)
            let_pass(key)
            for name, positions in writes.operators().items():
                _install_writing(name, positions, key)
        for operator in new:
            if (key, operator.name) not in _installed:
                namespace, _, name = operator.name.partition("::")
                if library is not None and key is not TRACED and namespace == _ATEN:
                    _install_compiled(library, operator, key)
                else:
                    if (key, namespace) not in _registrations:
                        _registrations[key, namespace] = torch.library.Library(namespace, "IMPL", key.name)
                    kernel = calls.kernel_of(operator, key.key)
                    _registrations[key, namespace].impl(name, kernel, with_keyset=operator.composite)
                _installed.add((key, operator.name))


def _install_writing(name: str, positions: tuple[int, ...], key: KernelKey) -> None:
    if library is not None and key is not TRACED:
        library.install_writing(name.removeprefix("aten::"), KERNEL_KEYS.index(key), positions)
        return
    kernel = writes.kernel_of(name, positions, key.key)
    run_uncompiled(kernel)
    _registrations[key, _ATEN].impl(name.removeprefix("aten::"), kernel)


_on_meta: list[torch.library.Library] = []
_installed_on_meta: set[str] = set()


def install_on_meta(wanted: Iterable[Operator]) -> None:
    """Register kernels that meta tensors alone reach, so that every other tensor's operators stay as fast as they are.

    In C++ a kernel asks for a region first, and goes on where there is none: it finds what is in Python on another key.
    """
    with _lock:
        if not _on_meta:
            _on_meta.append(torch.library.Library("aten", "IMPL", "AutogradMeta" if library is None else META_IN_PYTHON))
        for operator in wanted:
            if operator.name not in _installed_on_meta and operator.name.startswith(f"{_ATEN}::"):
                _on_meta[0].impl(_without_namespace(operator), calls.kernel_on_meta(operator))
                if library is not None:
                    library.install_on_meta(_without_namespace(operator), operator.composite)
                _installed_on_meta.add(operator.name)


_passes: dict[str, torch.library.Library] = {}


def let_autocast_pass(device_type: str) -> None:
    """Let operators pass native autocast's key for a device type, where its backend says nothing of autocast.

    That key tells whether somebody inside a region switched mixed precision off by PyTorch's own means.
    """
    key = autocast_key(device_type)
    if key is None:
        return
    with _lock:
        if device_type not in _passes and not torch._C._dispatch_has_backend_fallback(key):
            _passes[device_type] = torch.library.Library("_", "IMPL")
            _passes[device_type].fallback(torch.library.fallthrough_kernel, key.name)


def _without_namespace(operator: Operator) -> str:
    return operator.name.removeprefix("aten::")


# --- compiled -----------------------------------------------------------------------------------------------------------------

#: The numbers by which `compiled/kernels.h` knows device types and actions.
_DEVICE_NUMBERS = {CPU: 0, CUDA: 1}
_ACTION_NUMBERS: dict[Action, int] = {
    calls.low: 1,
    calls.low_widened: 2,
    calls.in_float32: 3,
    calls.in_widest: 4,
    calls.untouched: 5,
    calls.in_narrowest: 7,
}
_BANNED_NUMBER = 6

_numbers: dict[str, int] = {}  # the operators with compiled kernels, by name, and their numbers


def _install_compiled(library: Library, operator: Operator, key: KernelKey) -> None:
    if operator.name not in _numbers:
        _numbers[operator.name] = _add(library, operator)
    library.install(_without_namespace(operator), _numbers[operator.name], KERNEL_KEYS.index(key))


def _add(library: Library, operator: Operator) -> int:
    names = [argument.name for argument in operator.overload._schema.arguments]
    positions = (*operator.eligible.positions, *map(names.index, operator.eligible.keywords))
    missing = tuple((_DEVICE_NUMBERS[device], dtype) for device, dtype in operator.no_kernel)
    dtype_position = -1 if operator.dtype_position is None else operator.dtype_position
    sparse_position = -1 if operator.sparse_position is None else operator.sparse_position
    parameters, statistics = operator.eligible.parameters, operator.eligible.statistics
    return library.add(operator.composite, positions, parameters, statistics, dtype_position, sparse_position, missing)


def compiled_plan(
    library: Library,
    on_cpu: Mapping[str, Action],
    on_cuda: Mapping[str, Action],
    low_on_cpu: torch.dtype,
    low_on_cuda: torch.dtype,
    on_meta: bool,
) -> object:
    """Return the compiled form of what a plan does on each kind of device; its operators must be installed."""
    size = max(_numbers.values(), default=-1) + 1
    tables, advice = [bytearray(size), bytearray(size)], {}
    for table, actions in zip(tables, (on_cpu, on_cuda), strict=True):
        for name, action in actions.items():
            if name not in _numbers:  # an operator of somebody's library: its kernel is in Python
                continue
            table[_numbers[name]] = _BANNED_NUMBER if isinstance(action, Banned) else _ACTION_NUMBERS[action]
            if isinstance(action, Banned):
                advice[_numbers[name]] = action.message
    return library.plan(bytes(tables[0]), bytes(tables[1]), low_on_cpu, low_on_cuda, advice, on_meta)
