"""torch's binding of `unamp.adapter.Operations`: every operation by its canonical name.

NumPy arrays go in and come out. Most canonical signatures are torch's own, so a name is looked up
where torch keeps it; `_WRITTEN` holds the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
from torch import _VF, Tensor
from torch.nn import functional as F

from unamp.adapter import NamedOperations, Way
from unamp.adapter.observing import untraced
from unamp_torch.conformance import second_device
from unamp_torch.conformance.absent_devices import absent_devices
from unamp_torch.conformance.layered import layered
from unamp_torch.conformance.tensor_kinds import tensor_kinds
from unamp_torch.conformance.ways import ways
from unamp_torch.conformance.ways.graphs import only_compile
from unamp_torch.devices import accelerator, device_type
from unamp_torch.state import dtype_name

#: The functions that PyTorch computes with oneMKL's vector functions on a CPU.
_VECTORISED = (
    "acos asin atan cos cosh erf erfc erfinv exp expm1 lgamma log log10 log1p log2 sin sinh sqrt "
    "tan tanh trunc"
).split()


class TorchOperations(NamedOperations):
    """PyTorch's binding of `unamp.adapter.Operations`."""

    layered = staticmethod(layered)
    tensor_kinds = staticmethod(tensor_kinds)
    absent_devices = staticmethod(absent_devices)

    def __init__(self) -> None:
        super().__init__("torch", _find)
        # A probe tells float32 from float16 by their significands; TF32, which rounds inputs to ten
        # bits, would pass for float16. Only conformance makes this object, in a process of its own.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True  # else two runs differ in bits, by themselves
        # The first call of one of oneMKL's vector functions in a process is sometimes exact to five
        # digits only, where two threads make it at once (tanh in one process of four, torch 2.13).
        # So the first calls are made here.
        with untraced():
            for name in _VECTORISED:
                getattr(torch, name)(torch.full((1 << 16,), 0.5))

    def set_up(self) -> None:
        """See `Operations`."""
        only_compile()

    def tensor(
        self, array: np.ndarray, *, device: str = "cpu", requires_grad: bool = False
    ) -> Tensor:
        """Return a tensor with the array's values, shape and dtype."""
        made, where = torch.from_numpy(np.array(array, order="C")), device_type(device)
        placed = second_device.put(made) if where == second_device.NAME else made.to(where)
        return placed.requires_grad_(requires_grad)

    def parameter(self, array: np.ndarray, *, device: str = "cpu") -> Tensor:
        """Return a parameter, as layers have them."""
        return torch.nn.Parameter(self.tensor(array, device=device))

    def assign(self, parameter: Tensor, array: np.ndarray) -> None:
        """Change a parameter in place, as optimizers do."""
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(np.array(array)))

    def adam(self, array: np.ndarray, *, device: str = "cpu") -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that steps Adam with a gradient and returns the parameter's values."""
        parameter = self.parameter(array, device=device)
        optimizer = torch.optim.Adam([parameter], lr=0.1, foreach=False)

        def step(gradient: np.ndarray) -> np.ndarray:
            parameter.grad = self.tensor(gradient, device=device)
            optimizer.step()
            return self.numpy(parameter)

        return step

    def numpy(self, tensor: Tensor) -> np.ndarray:
        """Return a tensor's values; low dtypes arrive as float32."""
        # A copy to the host must not change values, inside a region, too: these casts are exact.
        tensor = second_device.stored(tensor).detach().resolve_conj().resolve_neg()
        exact = {
            torch.float16: torch.float32,
            torch.bfloat16: torch.float32,
            torch.complex32: torch.complex64,
        }
        tensor = tensor.to(exact.get(tensor.dtype, tensor.dtype))
        return tensor.cpu().numpy()

    def make_second_device(self) -> bool:
        """Make a second device, and return True; return False where there is an accelerator.

        See `second_device`.
        """
        if accelerator() not in (None, second_device.NAME):
            return False
        second_device.register()
        return True

    def dtype(self, tensor: Tensor) -> str:
        """Return the name of a tensor's dtype."""
        return dtype_name(tensor.dtype)

    def ways(self) -> tuple[Way, ...]:
        """Return the ways in which PyTorch runs a function."""
        return ways(second=accelerator() == second_device.NAME)

    def value_and_grad(
        self, function: Callable[..., Any], inputs: Sequence[Tensor], *, loss_scale: float = 1.0
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Return ``function(*inputs)`` and the gradients of its scaled value.

        A gradient is None for an input that the value does not depend on.
        """
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        value = function(*leaves)
        # Not through `grad_outputs`, which imports half of torch.fx on its first use.
        scaled = value if loss_scale == 1.0 else value * loss_scale
        return value.detach(), list(torch.autograd.grad(scaled, leaves, allow_unused=True))


#: The modules and classes in which torch keeps its functions, in the order of the search.
_HOMES = (F, torch, torch.special, torch.linalg, torch.Tensor)
_PREFIXES = {"linalg_": torch.linalg, "fft_": torch.fft}


def _find(op: str) -> Callable[..., Any] | None:
    if op in _WRITTEN:
        return _WRITTEN[op]
    for prefix, home in _PREFIXES.items():
        if op.startswith(prefix) and hasattr(home, op.removeprefix(prefix)):
            return cast("Callable[..., Any]", getattr(home, op.removeprefix(prefix)))
    found = (getattr(home, op, None) for home in _HOMES)
    return next((one for one in found if callable(one) and not isinstance(one, type)), None)


def _resize(mode: str, **options: Any) -> Callable[..., Tensor]:
    def resize(input: Tensor, output_size: Sequence[int]) -> Tensor:
        return F.interpolate(input, tuple(output_size), mode=mode, **options)

    return resize


def _pad(mode: str) -> Callable[..., Tensor]:
    def pad(input: Tensor, padding: Sequence[int]) -> Tensor:
        return F.pad(input, tuple(padding), mode=mode)

    return pad


def _lstm(input: Tensor, h0: Tensor, c0: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer, time first: ``weights`` are w_ih, w_hh, b_ih, b_hh."""
    return _VF.lstm(input, (h0, c0), list(weights), True, 1, 0.0, True, False, False)


def _gru(input: Tensor, h0: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    return _VF.gru(input, h0, list(weights), True, 1, 0.0, True, False, False)


def _rnn(input: Tensor, h0: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    return _VF.rnn_tanh(input, h0, list(weights), True, 1, 0.0, True, False, False)


def _lstm_cell(input: Tensor, h0: Tensor, c0: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    return torch.lstm_cell(input, (h0, c0), *weights)


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    w_in: Tensor,
    b_in: Tensor,
    w_out: Tensor,
    b_out: Tensor,
    *,
    heads: int,
) -> Tensor:
    """Attend, time first, as in torch; without the attention weights."""
    dim = query.shape[-1]
    return F.multi_head_attention_forward(
        query,
        key,
        value,
        dim,
        heads,
        w_in,
        b_in,
        None,
        None,
        False,
        0.0,
        w_out,
        b_out,
        need_weights=False,
    )[0]


def _index(input: Tensor, *indices: Tensor) -> Tensor:
    return input[indices]


def _index_put(input: Tensor, index: Tensor, values: Tensor) -> Tensor:
    return torch.index_put(input, (index,), values)


def _grid_sample(input: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(input, grid, align_corners=False)


def _affine_grid(theta: Tensor, size: Sequence[int]) -> Tensor:
    return F.affine_grid(theta, list(size), align_corners=False)


def _adaptive_log_softmax(
    input: Tensor, target: Tensor, head: Tensor, tail_in: Tensor, tail_out: Tensor, *, cutoff: int
) -> Tensor:
    """Run `torch.nn.AdaptiveLogSoftmaxWithLoss` with one tail cluster.

    Return the log probability of each target.
    """
    width = input.shape[-1]
    layer = _adaptive_layer(width, cutoff + tail_out.shape[0], cutoff, width / tail_in.shape[0])
    values = {"head.weight": head, "tail.0.0.weight": tail_in, "tail.0.1.weight": tail_out}
    result: Tensor = torch.func.functional_call(layer, values, (input, target))[0]
    return result


@cache
def _adaptive_layer(width: int, classes: int, cutoff: int, shrink: float) -> torch.nn.Module:
    return torch.nn.AdaptiveLogSoftmaxWithLoss(width, classes, [cutoff], div_value=shrink)


def _decoder_layer(target: Tensor, memory: Tensor, *weights: Tensor, heads: int) -> Tensor:
    """Run `torch.nn.TransformerDecoderLayer` without dropout, time first.

    ``weights`` are in the order of its parameters.
    """
    return _layer(torch.nn.TransformerDecoderLayer, weights, heads, target, memory)


def _encoder_layer(input: Tensor, *weights: Tensor, heads: int) -> Tensor:
    """Run `torch.nn.TransformerEncoderLayer` without dropout, time first.

    ``weights`` are in the order of its parameters.
    """
    return _layer(torch.nn.TransformerEncoderLayer, weights, heads, input)


def _layer(
    kind: type[torch.nn.Module], weights: Sequence[Tensor], heads: int, *inputs: Tensor
) -> Tensor:
    width = inputs[0].shape[-1]
    layer = _built(kind, width, heads, _hidden(weights, width))  # type: ignore[arg-type]  # a class is hashable
    names = [name for name, _ in layer.named_parameters()]
    result: Tensor = torch.func.functional_call(
        layer, dict(zip(names, weights, strict=True)), inputs
    )
    return result


@cache
def _built(kind: type[torch.nn.Module], width: int, heads: int, hidden: int) -> torch.nn.Module:
    # Only the layer's code is wanted: its parameters are the caller's.
    return kind(width, heads, hidden, dropout=0.0, device="meta")


def _hidden(weights: Sequence[Tensor], width: int) -> int:
    return next(
        w.shape[0]
        for w in weights
        if w.ndim == 2 and w.shape[1] == width and w.shape[0] not in (width, 3 * width)
    )


def _segment_pool(data: Tensor, lengths: Tensor) -> Tensor:
    return torch.segment_reduce(data, "sum", lengths=lengths)


def _fractional_max_pool(
    pool: Callable[..., Tensor], input: Tensor, samples: Tensor, *, kernel: int, size: int
) -> Tensor:
    return pool(input, kernel, output_size=size, _random_samples=samples)


_WRITTEN: dict[str, Callable[..., Any]] = {
    "adaptive_log_softmax": _adaptive_log_softmax,
    "addmm_activation": torch._addmm_activation,
    "affine_grid": _affine_grid,
    "bitwise_shift": torch.bitwise_left_shift,
    "bessel_k0": torch.special.modified_bessel_k0,
    "bessel_k0e": torch.special.scaled_modified_bessel_k0,
    "bessel_k1": torch.special.modified_bessel_k1,
    "bessel_k1e": torch.special.scaled_modified_bessel_k1,
    "cast": lambda input, dtype: input.to(getattr(torch, dtype)),
    "circular_pad": _pad("circular"),
    "convolution": lambda input, weight, bias: torch.convolution(
        input, weight, bias, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    ),
    "dirichlet": torch._sample_dirichlet,
    "exponential": lambda input: torch.ops.aten.exponential(input, 1.0),
    "fft_c2c": lambda input: torch._fft_c2c(input, [0], 0, True),
    "fft_c2r": lambda input, n: torch._fft_c2r(input, [1], 0, n),
    "fft_r2c": lambda input: torch._fft_r2c(input, [1], 0, True),
    "fractional_max_pool2d": partial(_fractional_max_pool, F.fractional_max_pool2d),
    "fractional_max_pool3d": partial(_fractional_max_pool, F.fractional_max_pool3d),
    "frobenius_norm": torch.ops.aten.frobenius_norm,
    "gamma": torch._standard_gamma,
    "grid_sample": _grid_sample,
    "gru": _gru,
    "identity": torch.ops.aten.alias,
    "index": _index,
    "index_put": _index_put,
    "log_sigmoid": F.logsigmoid,
    "lstm": _lstm,
    "lstm_cell": _lstm_cell,
    "lu_solve": torch.linalg.lu_solve,
    "multi_head_attention": _multi_head_attention,
    "nuclear_norm": torch.ops.aten.nuclear_norm,
    "pad_sequence": lambda *sequences: torch.ops.aten.pad_sequence(list(sequences)),
    **{f"reflection_pad{n}d": _pad("reflect") for n in (1, 2, 3)},
    **{f"replication_pad{n}d": _pad("replicate") for n in (1, 2, 3)},
    "rnn": _rnn,
    "rnn_cell": torch.rnn_tanh_cell,
    "segment_pool": _segment_pool,
    "shape": torch._shape_as_tensor,
    "slice": torch.ops.aten.slice,
    "tensor_unfold": torch.Tensor.unfold,
    "transformer_decoder_layer": _decoder_layer,
    "transformer_encoder_layer": _encoder_layer,
    "trilinear": lambda a, b, c: torch._trilinear(a, b, c, [], [], [], [0]),
    "uniform": lambda input: torch.ops.aten.uniform(input, 0.0, 1.0),
    "upsample_bicubic2d": _resize("bicubic", align_corners=False),
    "upsample_bilinear2d": _resize("bilinear", align_corners=False),
    "upsample_lanczos2d": lambda input, size: torch.ops.aten._upsample_lanczos2d_aa(
        input, size, False
    ),
    "upsample_linear1d": _resize("linear", align_corners=False),
    **{f"upsample_nearest{n}d": _resize("nearest") for n in (1, 2, 3)},
    **{f"upsample_nearest_exact{n}d": _resize("nearest-exact") for n in (1, 2, 3)},
    "upsample_trilinear3d": _resize("trilinear", align_corners=False),
    "view": lambda input, shape: input.view(shape),
    "weight_norm": lambda v, g: torch._weight_norm(v, g, 0),
}
if not hasattr(torch.ops.aten, "_upsample_lanczos2d_aa"):  # before torch 2.12
    del _WRITTEN["upsample_lanczos2d"]
