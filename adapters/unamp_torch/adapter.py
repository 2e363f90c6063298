"""The contract of `unamp.adapter` for PyTorch: each method is one of a module beside this one, which has the explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch

from unamp.adapter import Decoration, Fact, Gap, Gradients, How, Operations, OpRecord, Realisation, Support
from unamp.adapter.layers import Layered
from unamp.adapter.observer import Observer
from unamp.adapter.wrapping import with_method
from unamp.networks import call_under
from unamp.policy import Policy
from unamp_torch import compiling, keras, observing, patches, plans, probing, scaling, state
from unamp_torch.activation import activation
from unamp_torch.compiled import build_hint, library
from unamp_torch.spellings import made_by, spelling
from unamp_torch.state import CUDA, autocast_key, dispatch_key, dtype_name, excluded, set_excluded, thread

__all__ = ["TorchAdapter"]


GAPS = (
    Gap(
        "a region object made outside a compiled function and opened by name inside it",
        "torch.compile cannot enter a context manager that it did not see being made: it breaks the graph there, or with "
        "fullgraph=True raises; call unamp.autocast(...) inside the function, or decorate it",
        "https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0142.html",
    ),
    Gap(
        "the backend 'eager' of torch.compile when an operation raises inside a region inside the compiled function",
        "the graph has no try/finally: the region stays open in that thread, as PyTorch's own autocast does there",
    ),
    Gap(
        "nn.AdaptiveLogSoftmaxWithLoss on a low input at O1, unless the policy names adaptive_log_softmax",
        "PyTorch's layer writes its float32 parts into a result of its input's dtype, and raises, as under torch.autocast",
    ),
    Gap(
        "bilinear in a function that is compiled or exported, under the preset torch-cpu or torch-cuda without other lists",
        "PyTorch casts the parts of this operation below where graphs are recorded: it runs in float32, as under "
        "torch.autocast; name it in allow",
    ),
    Gap(
        "products of sparse tensors in a compressed layout (CSR, CSC, BSR) on a CPU",
        "PyTorch has no low kernel for them, and its own autocast, which carries out its own lists, casts them: they raise, as "
        "under torch.autocast; deny the operation, or use the COO layout",
        "https://docs.pytorch.org/docs/stable/sparse.html",
    ),
    Gap(
        "operations on torch.masked tensors whose rule is low, in bfloat16",
        "masked tensors know float16, float32 and float64 alone: PyTorch raises before it computes; use float16, or deny the "
        "operation",
    ),
    Gap(
        "scaled_dot_product_attention of jagged tensors with widen_results, or of low ones where it is denied",
        "PyTorch's cast of such a tensor has no backward pass where its gradient is not contiguous: it raises, as the "
        "same cast does without a region",
    ),
    Gap(
        "backward operators that are called by hand at O2 and O3 (aten::max_pool2d_with_indices_backward)",
        "they follow no rule, and a low gradient beside a float32 input raises, as it does without a region",
    ),
    Gap(
        "layers of torch.ao.quantization after an operation that runs low",
        "their operators take float32 alone and are on nobody's list: they raise, as under torch.autocast; deny what comes "
        "before, or widen its result",
    ),
    Gap(
        "changing a parameter inside a region that stays open by what PyTorch does not see, and without a backward pass before "
        "its next use",
        "PyTorch sees its operators in that thread, custom_op's, and compiled functions; what writes through NumPy, DLPack, a "
        "kernel of its own or in another thread is noticed at the next backward pass: close the region, or open it with "
        "cache_enabled=False",
    ),
    Gap(
        "a graph of torch.jit.script or torch.jit.trace that is run inside a region",
        "TorchScript puts PyTorch's own autocast on it as well, which carries out its own lists for what the graph leaves "
        "alone; run it outside of regions, with the policy in the traced function, or switch that off: "
        "torch._C._jit_set_autocast_mode(False)",
        "https://docs.pytorch.org/docs/stable/amp.html",
    ),
    Gap(
        "meta tensors under torch.inference_mode in a region that names no device",
        "there they have no dispatch key that a region could use for them alone: the first operation whose rule PyTorch's "
        "autocast does not follow by itself (softmax, layer_norm, a loss) raises, and what runs before it or without one "
        'computes in float32; open the region with unamp.autocast("meta")',
    ),
    Gap(
        "the preset 'native' on another device than a CPU, CUDA's, Apple's or Intel's in explain and traces",
        "PyTorch's lists for it are followed, but not known by name: every operation is told as untouched",
    ),
    Gap(
        "decorate with master_grad under DistributedDataParallel",
        "its buckets take gradients in the dtype of their parameters: the backward pass raises; leave master_grad out",
    ),
    Gap(
        "decorate for modules of torch.distributed.fsdp",
        "those keep float32 parameters, each rank its part, and cast them by their own MixedPrecision; a region serves as well",
    ),
    Gap(
        "GradScaler with fused optimizers waits for the GPU once in every step",
        "its step says whether it was taken; torch.amp.GradScaler leaves that to the optimizer's kernel, and does not know",
    ),
    Gap(
        "backward in a low dtype on CUDA for an operator that has a low kernel forward but none backward",
        "such operators are known for the CPU, where they were measured; deny the operation",
    ),
)

#: What asks oneDNN for instructions of this CPU, and how many times slower than float32 a dtype is without.
_HAS_INSTRUCTIONS = {"float16": "_is_mkldnn_fp16_supported", "bfloat16": "_is_mkldnn_bf16_supported"}
_FALLBACK = {"float16": 28.0, "bfloat16": 22.0}


@cache
def _has_instructions(dtype: str) -> bool | None:
    """Return whether oneDNN finds instructions of this CPU for a dtype; None where it cannot be asked."""
    ask = getattr(torch.ops.mkldnn, _HAS_INSTRUCTIONS[dtype], None)
    if ask is None:
        return None
    tracer = dispatch_key("Tracer")  # `torch.jit.trace` cannot record the question
    off = excluded(tracer)
    set_excluded(tracer, True)
    try:
        return bool(ask())
    finally:
        set_excluded(tracer, off)


class TorchAdapter:
    """PyTorch, on the CPU and on CUDA.

    Args:
        requires: the versions of PyTorch that it works with.
    """

    framework = "torch"
    thread = thread
    holds_gradients = True
    dtype_errors = (
        "dtype|scalar ?type|ScalarType|same type|type .* should be the same|not implemented for '|can't be cast|"
        "cannot be converted to type|c10::"
    )

    def __init__(self, requires: str) -> None:
        self.requires = requires

    def version(self) -> str:
        """Return PyTorch's version, with its build."""
        return str(torch.__version__)

    def probe(self) -> None:
        """Compute a little in a region; the names that regions need were looked at when this package was imported."""
        probing.probe_effects()

    def devices(self) -> tuple[str, ...]:
        """Return the CPU, and a GPU where PyTorch finds an accelerator of whatever kind (see `device_names`)."""
        return ("cpu",) if plans.accelerator() is None else ("cpu", "gpu")

    def device_names(self) -> Mapping[str, str]:
        """Return PyTorch's word for every device that a region can cover here, by its kind."""
        found = plans.accelerator()
        return {"cpu": "cpu", **({} if found is None else {"gpu": found}), "meta": "meta"}

    def device_kind(self, device: object) -> str | None:
        """Return the kind of a `torch.device`, or of the string for one; None where it is neither."""
        if isinstance(device, str):
            try:
                device = torch.device(device)
            except RuntimeError:
                return None
        return plans.device_kind(device.type) if isinstance(device, torch.device) else None

    def support(self, device: str, dtype: str) -> Support:
        """Return native for the CPU (where single operators are emulated), and for a GPU what CUDA says."""
        if device == "cpu":
            return Support.NATIVE
        if plans.accelerator() is None:
            return Support.UNSUPPORTED
        if plans.accelerator() != CUDA:
            return Support.NATIVE  # where single operators are emulated, as on the CPU
        emulated = dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False)
        return Support.EMULATED if emulated else Support.NATIVE

    def slowdown(self, device: str, dtype: str) -> float:
        """Return 1 where the CPU has instructions for the dtype and oneDNN uses them; else how slow a fallback is."""
        return _FALLBACK[dtype] if device == "cpu" and _has_instructions(dtype) is False else 1.0

    def runtime(self) -> Mapping[str, Fact]:
        """``capability`` is of PyTorch's own loops, ``onednn_...`` of oneDNN; ``kernels`` is how this adapter's are written."""
        asked = {dtype: _has_instructions(dtype) for dtype in _HAS_INSTRUCTIONS}
        return {
            "build": f"cuda {torch.version.cuda}" if torch.version.cuda else "cpu",
            "capability": torch.backends.cpu.get_cpu_capability(),
            "kernels": "Python" if library is None else "C++",
            "mkl": torch.backends.mkl.is_available(),
            "onednn": torch.backends.mkldnn.is_available(),
            **{f"onednn_{dtype}": answer for dtype, answer in asked.items() if answer is not None},
            "threads": torch.get_num_threads(),
        }

    def faster(self) -> str | None:
        return build_hint(on_gpu=plans.accelerator() is not None)

    def gaps(self) -> tuple[Gap, ...]:
        """Return the gaps: PyTorch lets it do none of these."""
        return GAPS

    def prepare(self, policy: Policy, device: str | None) -> Realisation:
        return activation(plans.plan(policy, device))

    def how(self, op: str, policy: Policy, device: str) -> How:
        return plans.how(op, policy, device)

    def observe(self, sink: Callable[[OpRecord], None], values: bool) -> AbstractContextManager[None]:
        plans.install_all()
        if thread.plan is not None:
            plans.install_traced(thread.plan)
        return observing.observe(sink, values, patches)

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, torch.Tensor)

    def cast(self, tensor: Any, dtype: str) -> Any:
        return tensor.to(getattr(torch, dtype))

    def dtype_of(self, tensor: Any) -> str:
        return dtype_name(tensor.dtype)

    def device_of(self, tensor: Any) -> str:
        kind: str = tensor.device.type
        return plans.device_kind(kind)

    def native_policy(self, device: str) -> Policy | None:
        kind = plans.device_type(device)
        plan = thread.plan
        if (plan is not None and kind in plan.devices) or autocast_key(kind) is None or not torch.is_autocast_enabled(kind):
            return None
        return Policy("O1", dtype_name(torch.get_autocast_dtype(kind)), preset="native")

    def check_compiled(self, policy: Policy, device: str) -> None:
        """Do nothing: functions that torch.compile traces follow every policy."""

    def is_network(self, value: object) -> bool:
        return isinstance(value, torch.nn.Module)

    def wrap(self, network: Any, policy: Policy) -> Any:
        return with_method(network, "forward", partial(call_under, self, policy), partial(self.wrap, policy=policy))

    def is_optimizer(self, value: object) -> bool:
        return isinstance(value, torch.optim.Optimizer) or keras.is_optimizer(value)

    def scale_loss(self, loss: Any, scale: float) -> Any:
        return scaling.scale_loss(loss, scale)

    def backward(self, compute: Callable[[], tuple[Any, Any]], network: Any, optimizer: Any) -> tuple[Any, Any]:
        of_keras = not isinstance(optimizer, torch.optim.Optimizer)
        return keras.backward(compute, network, optimizer) if of_keras else scaling.backward(compute, optimizer)

    def all_finite(self, tensors: Sequence[Any]) -> Any:
        return scaling.all_finite(tensors)

    def gradients(self, optimizer: Any, given: Any) -> Gradients:
        if not isinstance(optimizer, torch.optim.Optimizer):
            return keras.KerasGradients(optimizer, given)
        return scaling.TorchGradients(optimizer, given)

    def decorate(self, networks: Sequence[Any], optimizers: Sequence[Any], decoration: Decoration) -> None:
        from unamp_torch.decoration import decorate  # few programs use it

        decorate(networks, optimizers, decoration)

    def layered(self) -> Layered:
        from unamp_torch.layers import TorchLayers  # few programs use it

        return TorchLayers()

    def policy_for(self, tensor: Any) -> Policy | None:
        device = tensor.device.type
        key = autocast_key(device)
        plan: state.Plan | None = thread.plan
        if key is not None and excluded(key):  # in an operation, or switched off by PyTorch's own means
            return None
        while plan is not None and device not in plan.devices:
            plan = plan.beside
        return None if plan is None else plan.policy

    def operators_changed(self) -> None:
        plans.forget()

    def called_as_it_is(self, function: Callable[..., Any]) -> None:
        compiling.call_while_tracing(function)

    def report_registered(self, observer: Observer, record: OpRecord, tensors: Sequence[Any], result: Any) -> None:
        observing.report_registered(observer, record, tensors, result)

    def spelling(self, value: object) -> str | None:
        """Return the spelling of one of PyTorch's functions, layer classes or operators."""
        return spelling(value)

    def made_by(self, tensor: Any) -> Iterator[str]:
        """Give the operations of the graph that autograd recorded; without a gradient there is none."""
        return made_by(tensor)

    compiling = staticmethod(compiling.compiling)  # asked for every region that is made

    def make_capturable(self, region: AbstractContextManager[Any, bool | None]) -> int:
        return compiling.make_capturable(region)

    def enter_captured(self, key: int) -> None:
        compiling.enter(key)

    def leave_captured(self, key: int) -> None:
        compiling.leave(key)

    def operations(self) -> Operations:
        from unamp_torch.conformance import TorchOperations

        return TorchOperations()
