"""One step of an LSTM and of a GRU as the single kernel that PyTorch asks of an accelerator.

A CPU has no such kernel. As on CUDA, each kernel computes in float32 and rounds its results to the
dtype of its inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor


def lstm(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new hidden state, the new cell state, and the gates for the backward pass."""
    dtype = input_gates.dtype
    total = _sum(input_gates, hidden_gates, input_bias, hidden_bias)
    into, forget, new, out = total.chunk(4, 1)
    into, forget, new, out = into.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()
    after = forget * cell.float() + into * new
    return (
        (out * after.tanh()).to(dtype),
        after.to(dtype),
        torch.cat([into, forget, new, out], 1).to(dtype),
    )


def lstm_backward(
    grad_hidden: Tensor | None,
    grad_cell: Tensor | None,
    before: Tensor,
    after: Tensor,
    gates: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of the gates, of the cell state, and of a bias."""
    if grad_hidden is None and grad_cell is None:
        return None, None, None
    into, forget, new, out = gates.float().chunk(4, 1)
    squashed = after.float().tanh()
    hidden = torch.zeros_like(squashed) if grad_hidden is None else grad_hidden.float()
    cell = hidden * out * (1 - squashed * squashed)
    if grad_cell is not None:
        cell = cell + grad_cell.float()
    parts = (
        cell * new * into * (1 - into),
        cell * before.float() * forget * (1 - forget),
        cell * into * (1 - new * new),
        hidden * squashed * out * (1 - out),
    )
    grad = torch.cat(parts, 1).to(gates.dtype)
    return grad, (cell * forget).to(gates.dtype), grad.sum(0) if has_bias else None


def gru(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hidden: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the new hidden state, and the tensor that the backward pass needs."""
    dtype = input_gates.dtype
    given, state = _sum(input_gates, input_bias), _sum(hidden_gates, hidden_bias)
    before = hidden.float()
    (a, b, c), (d, e, f) = given.chunk(3, 1), state.chunk(3, 1)
    reset, update = (a + d).sigmoid(), (b + e).sigmoid()
    new = (c + reset * f).tanh()
    kept = torch.cat([reset, update, new, before, f], 1)
    return (new + update * (before - new)).to(dtype), kept.to(dtype)


def gru_backward(
    grad: Tensor, kept: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of both kinds of gates, of the hidden state, and of both biases."""
    dtype = kept.dtype
    reset, update, new, before, state = kept.float().chunk(5, 1)
    to_new = grad.float() * (1 - update) * (1 - new * new)
    to_update = grad.float() * (before - new) * update * (1 - update)
    to_reset = to_new * state * reset * (1 - reset)
    of_input = torch.cat([to_reset, to_update, to_new], 1).to(dtype)
    of_hidden = torch.cat([to_reset, to_update, to_new * reset], 1).to(dtype)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, (grad.float() * update).to(dtype), *biases


def _sum(*terms: Tensor | None) -> Tensor:
    first, *rest = (term.float() for term in terms if term is not None)
    return sum(rest, first)
