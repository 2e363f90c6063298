"""A second device for PyTorch wherever there is a CPU, which stores its tensors.

It is a backend from outside PyTorch (PrivateUse1). A policy means the same on every device, and
this device shows it where there is no GPU: to PyTorch, and to the adapter, it is an accelerator
like any other, with no list of its own for autocast. The CPU computes for it.

See https://docs.pytorch.org/tutorials/advanced/python_extension_autoload.html for backends that
register themselves.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

from unamp_torch.conformance import fused_cells

#: PyTorch's name for the device.
NAME = "second"

_CPU = torch.device("cpu")
_library: list[torch.library.Library] = []
_COMPOSED = "CompositeImplicitAutograd"  # the key of operators that are made of others

#: The kernels that PyTorch asks of a backend and that a CPU does not have.
_KERNELS = {
    torch.ops.aten._thnn_fused_lstm_cell.default: fused_cells.lstm,
    torch.ops.aten._thnn_fused_lstm_cell_backward_impl.default: fused_cells.lstm_backward,
    torch.ops.aten._thnn_fused_gru_cell.default: fused_cells.gru,
    torch.ops.aten._thnn_fused_gru_cell_backward.default: fused_cells.gru_backward,
}


class _Stored(torch.Tensor):
    """A tensor on the device: its numbers are a tensor on the CPU."""

    stored: torch.Tensor

    @staticmethod
    def __new__(cls, stored: torch.Tensor) -> _Stored:
        # The made tensor cannot say that it is a conjugate or a negative which is yet to be
        # computed: so it is computed here.
        stored = stored.resolve_conj().resolve_neg()
        made: _Stored = torch.Tensor._make_wrapper_subclass(
            cls,
            stored.shape,
            dtype=stored.dtype,
            layout=stored.layout,
            device=torch.device(NAME, 0),
            strides=stored.stride() if stored.layout is torch.strided else None,
            storage_offset=stored.storage_offset() if stored.layout is torch.strided else None,
        )
        made.stored = stored
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.stored!r} on {NAME}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = dict(kwargs or {})
        if _is_composed(func):
            # In inference mode an operator made of others arrives as a whole, and
            # `func.decompose` would prefer a decomposition in Python, which may give other bits.
            return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        asked = kwargs.get("device")
        to_cpu = asked is not None and torch.device(asked) == _CPU
        given = [stored(value) for value in args]
        named = {name: stored(value) for name, value in kwargs.items()}
        if asked is not None:
            named["device"] = _CPU
        result = _KERNELS.get(func, func)(*given, **named)
        if to_cpu:
            return result
        result = (
            _Stored(result)
            if isinstance(result, torch.Tensor)
            else tree_map_only(torch.Tensor, _Stored, result)
        )
        return return_and_correct_aliasing(func, args, kwargs, result) if _aliases(func) else result


@cache
def _is_composed(operator: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), _COMPOSED)


@cache
def _aliases(operator: Any) -> bool:
    schema = operator._schema
    return any(each.alias_info is not None for each in (*schema.arguments, *schema.returns))


def stored(value: Any) -> Any:
    """Return an operator's argument with its tensors, single or in lists, on the CPU."""
    if isinstance(value, _Stored):
        return value.stored
    return [stored(each) for each in value] if isinstance(value, (list, tuple)) else value


def put(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the device with the numbers of one on the CPU, as `tensor.to` does.

    It makes one tensor, and no copy.
    """
    return _Stored(tensor)


class _Module(backend_registration._DummyBackendModule):
    """The functions that PyTorch asks a backend's module for."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        """Return the dtypes that `torch.autocast` may be opened with."""
        return [torch.float16, torch.bfloat16]


def register() -> None:
    """Make the device PyTorch's accelerator, for the rest of this process.

    Raises:
        RuntimeError: where this process has an accelerator already.
    """
    if _library:
        return
    if torch.accelerator.is_available():
        raise RuntimeError(
            f"this process has an accelerator already: {torch.accelerator.current_accelerator()}"
        )
    # Not `_setup_privateuseone_for_python_backend`, which gives every `nn.Module` a method of the
    # device's name.
    backend_registration.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _Module())
    torch._C._acc.register_python_privateuseone_hook(backend_registration._DummyPrivateUse1Hook())
    torch._C._acc.register_python_privateuseone_device_guard(
        backend_registration._DummyDeviceGuard()
    )
    _library.append(torch.library.Library("aten", "IMPL", "PrivateUse1"))
    made = {
        "empty.memory_format": torch.empty,
        "empty_strided": torch.empty_strided,
        "arange.start_step": torch.arange,
    }
    for name, make in made.items():
        _library[0].impl(name, _on_the_cpu(make))


def _on_the_cpu(make: Any) -> Any:
    def made(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> _Stored:
        return _Stored(
            make(
                *args,
                device=_CPU,
                **{name: value for name, value in kwargs.items() if value is not None},
            )
        )

    return made
