"""The registration of kernels with PyTorch's dispatcher, and the tables for the compiled ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import torch

from unamp_torch import calls, writes
from unamp_torch.calls import Banned
from unamp_torch.compiled import Library, library
from unamp_torch.compiling import run_uncompiled
from unamp_torch.control_flow import let_pass
from unamp_torch.listing import Action, Operator
from unamp_torch.state import (
    CPU,
    CUDA,
    KERNEL_KEYS,
    META,
    META_IN_PYTHON,
    TRACED,
    KernelKey,
    Plan,
    autocast_key,
    lock,
)

_ATEN = "aten"

_lock = lock()
_installed: set[tuple[str, str]] = set()  # operators with a kernel on a key, by the names of both


@cache
def _registrations(key: str, namespace: str) -> torch.library.Library:
    """Return PyTorch's own object for kernels on a key.

    It is kept for good: without it, its kernels would be gone.
    """
    return torch.library.Library(namespace, "IMPL", key)


@cache
def _let_others_pass(key: str) -> torch.library.Library:
    """Let operators without a kernel on a key go on to the next key, instead of raising."""
    made = torch.library.Library("_", "IMPL")
    made.fallback(torch.library.fallthrough_kernel, key)
    return made


def _new(wanted: Iterable[Operator], key: str) -> Iterator[Operator]:
    """Yield the operators that have no kernel on a key yet, and note that they get one."""
    for operator in wanted:
        if (operator.name, key) not in _installed:
            yield operator
            _installed.add((operator.name, key))


def install(wanted: Iterable[Operator], key: KernelKey) -> None:
    """Register kernels for operators, once and for good.

    Taking a kernel away under running threads crashes PyTorch. The first call for a key, even with
    no operator, also registers the kernels for operators that write to a tensor.
    """
    with _lock:
        _begin(key)
        for operator in _new(wanted, key.name):
            namespace, _, name = operator.name.partition("::")
            if library is not None and key is not TRACED and namespace == _ATEN:
                _install_compiled(library, operator, key)
            else:
                kernel = calls.kernel_of(operator, key.key)
                _registrations(key.name, namespace).impl(
                    name, kernel, with_keyset=operator.composite
                )


@cache
def _begin(key: KernelKey) -> None:
    """Let operators without a kernel pass a key of ours, and register those that write to a tensor.

    Operators that take functions pass as well (`control_flow`).
    """
    _let_others_pass(key.name)
    let_pass(key)
    for name, positions in writes.operators().items():
        own_name = _without_namespace(name)
        if library is not None and key is not TRACED:
            library.install_writing(own_name, KERNEL_KEYS.index(key), positions)
        else:
            kernel = writes.kernel_of(name, positions, key.key)
            run_uncompiled(kernel)
            _registrations(key.name, _ATEN).impl(own_name, kernel)


def install_on_meta(wanted: Iterable[Operator]) -> None:
    """Register kernels that only meta tensors reach, so that all other tensors stay as fast.

    The compiled kernel first asks whether a region is open, and calls the kernel in Python, which
    is on another key, only then.
    """
    key = "AutogradMeta" if library is None else META_IN_PYTHON
    with _lock:
        for operator in _new((each for each in wanted if each.name.startswith("aten::")), key):
            _registrations(key, _ATEN).impl(
                _without_namespace(operator.name), calls.kernel_on_meta(operator)
            )
            if library is not None:
                library.install_on_meta(_without_namespace(operator.name), operator.composite)


def let_autocast_pass(device_type: str) -> None:
    """Let operators pass native autocast's key where a device type's backend has no fallback on it.

    Regions need that key: it tells whether somebody inside switched mixed precision off by
    PyTorch's own means.
    """
    key = autocast_key(device_type)
    with _lock:
        if key is not None and not torch._C._dispatch_has_backend_fallback(key):
            _let_others_pass(key.name)


def _without_namespace(name: str) -> str:
    return name.removeprefix("aten::")


# --- compiled -------------------------------------------------------------------------------------

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
    library.install(
        _without_namespace(operator.name), _numbers[operator.name], KERNEL_KEYS.index(key)
    )


def _add(library: Library, operator: Operator) -> int:
    names = [argument.name for argument in operator.overload._schema.arguments]
    positions = (*operator.eligible.positions, *map(names.index, operator.eligible.keywords))
    missing = tuple((_DEVICE_NUMBERS[device], dtype) for device, dtype in operator.no_kernel)
    dtype_position = -1 if operator.dtype_position is None else operator.dtype_position
    sparse_position = -1 if operator.sparse_position is None else operator.sparse_position
    parameters, statistics = operator.eligible.parameters, operator.eligible.statistics
    return library.add(
        operator.composite,
        positions,
        parameters,
        statistics,
        dtype_position,
        sparse_position,
        missing,
    )


def compiled_plan(library: Library, plan: Plan) -> object:
    """Return the compiled form of a plan's actions by device; its operators must be installed."""
    size, advice = max(_numbers.values(), default=-1) + 1, {}
    tables = {device: bytearray(size) for device in _DEVICE_NUMBERS}
    for device, table in tables.items():
        for name, action in plan.actions.get(device, {}).items():
            number = _numbers.get(name)
            if number is None:  # an operator of somebody's library: its kernel is in Python
                continue
            if isinstance(action, Banned):
                table[number], advice[number] = _BANNED_NUMBER, action.message
            else:
                table[number] = _ACTION_NUMBERS[action]
    on_cpu, on_cuda = map(bytes, tables.values())
    return library.plan(
        on_cpu, on_cuda, plan.low_on(CPU), plan.low_on(CUDA), advice, META in plan.actions
    )
