"""The exchange of one low parameter's memory with its master weight's, kept between steps."""

from __future__ import annotations

import math

import paddle

from unamp.adapter.memory import bytes_differ
from unamp_paddle.casting import narrow
from unamp_paddle.state import CPU_ONLY, FLOAT32, LOW, Tensor, dtype_of

# The functions themselves, not the module's attributes, which a region replaces.
_assign_out_, _cast = paddle._C_ops.assign_out_, paddle._C_ops.cast
_equal, _where = paddle._C_ops.equal, paddle._C_ops.where
_DenseTensor = paddle.base.core.DenseTensor


class Exchange:
    """One low parameter, whose memory is its master weight's from `begin` to `finish`.

    The rounded numbers of the last step are kept (2 bytes each): where the parameter differs from
    them, other code has changed it. The tensor with the parameter's low memory is kept, too:
    making one takes longer than a small cast.
    """

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self._dtype = dtype_of(parameter)
        self.master: Tensor | None = None
        self._low: Tensor | None = None
        self._given: Tensor | None = None
        self._gradient: paddle.base.core.DenseTensor | None = None

    def has_given(self, parameter: Tensor, master: Tensor) -> bool:
        """Return whether a parameter still holds the rounded numbers of its last step."""
        return (
            self._given is not None
            and self.parameter is parameter
            and self.master is master
            and self._holds_low_memory()
            and _on_cpu(parameter)
            and not bytes_differ(parameter.data_ptr(), self._given.data_ptr(), 2 * self._numbers)
        )

    def begin(self, master: Tensor) -> None:
        """Give the parameter the memory of a master weight, and its gradient float32 memory."""
        parameter = self.parameter
        if self._low is None or not self._holds_low_memory():
            self._dtype, self._given = dtype_of(parameter), None
            self._low, self._place = alias(parameter), parameter.data_ptr()
            self._shape, self._numbers = parameter.shape, math.prod(parameter.shape)
        self.master, self._gradient = master, None
        gradient = parameter._grad_ivar()
        if gradient is not None and gradient.dtype in LOW:
            if gradient.is_selected_rows():
                self._gradient = alias(gradient).get_tensor()
                wide = _cast(alias(gradient), FLOAT32)
            else:
                self._gradient = _DenseTensor()
                self._gradient._share_data_with(gradient.get_tensor())
                wide = _cast(gradient, FLOAT32)
            exchange_memory(gradient, wide)
        exchange_memory(parameter, master)

    def finish(self) -> None:
        """Round the master weight into the low memory, and put that and the gradient's back."""
        # An optimizer may have given the parameter new memory, which now has the numbers.
        exchange_memory(self.master, self.parameter)
        self._given = narrow(self.master, self._dtype)
        _assign_out_(self._given, self._low)
        exchange_memory(self.parameter, self._low)
        gradient = self.parameter._grad_ivar()
        if self._gradient is not None and gradient is not None:
            _memory(gradient)._share_data_with(self._gradient)
        self._gradient = None

    def _holds_low_memory(self) -> bool:
        """Return whether the parameter has the memory that it had when it was last exchanged."""
        parameter = self.parameter
        return (
            parameter.data_ptr() == self._place
            and parameter.is_contiguous()
            and parameter.shape == self._shape
            and dtype_of(parameter) is self._dtype
        )


def alias(tensor: Tensor) -> Tensor:
    """Return a new tensor that shares a tensor's memory, or that of a sparse gradient's rows."""
    return Tensor(_memory(tensor))


def exchange_memory(tensor: Tensor, other: Tensor) -> None:
    """Give a tensor, or a sparse gradient's rows, the memory and the dtype of another tensor."""
    _memory(tensor)._share_data_with(other.get_tensor())


def _memory(tensor: Tensor) -> paddle.base.core.DenseTensor:
    # The memory of rows lives only as long as the tensor that holds them.
    return (tensor.get_selected_rows() if tensor.is_selected_rows() else tensor).get_tensor()


def follow(parameter: Tensor, master: Tensor) -> None:
    """Give a master weight the numbers of its parameter that are not its own numbers, rounded."""
    rounded = narrow(master, dtype_of(parameter))
    # Not compared on a GPU: the process would have to wait for the answer.
    if not (_on_cpu(parameter) and _same(rounded, parameter)):
        wide = _cast(parameter.detach(), FLOAT32)
        _assign_out_(_where(_equal(_cast(rounded, FLOAT32), wide), master, wide), master)


def _on_cpu(tensor: Tensor) -> bool:
    return CPU_ONLY or bool(tensor.place.is_cpu_place())


def _same(first: Tensor, second: Tensor) -> bool:
    """Return whether two low tensors on the CPU are equal to the bit."""
    first, second = first.contiguous(), second.detach().contiguous()
    return first.shape == second.shape and not bytes_differ(
        first.data_ptr(), second.data_ptr(), 2 * math.prod(first.shape)
    )
