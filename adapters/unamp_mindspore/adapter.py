"""unamp's adapter for MindSpore: the contract of `unamp.adapter`, carried out by the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import mindspore
import numpy as np
from mindspore import nn
from mindspore.communication import get_group_size, get_rank

from unamp.adapter import (
    CapturesNothing,
    Decoration,
    Fact,
    Gap,
    Gradients,
    How,
    Operations,
    OpRecord,
    Realisation,
    Support,
    major_minor,
)
from unamp.adapter.layers import Layered
from unamp.adapter.observer import Observer, Sink
from unamp.adapter.registered import PlanDecides
from unamp.adapter.state import ELSEWHERE
from unamp.policy import Policy
from unamp_mindspore import compiling, devices, networks, observing, patches, plans, scaling
from unamp_mindspore.activation import Activation
from unamp_mindspore.casting import cast
from unamp_mindspore.compiled import build_hint, exchange
from unamp_mindspore.decoration import OPTIMIZERS, decorate
from unamp_mindspore.observing import dtype_name
from unamp_mindspore.probing import probe_effects
from unamp_mindspore.spellings import spelling
from unamp_mindspore.state import DTYPES, Tensor, thread
from unamp_mindspore.state import device as device_in_use

__all__ = ["MindSporeAdapter"]


class MindSporeAdapter(CapturesNothing, PlanDecides):
    """MindSpore, in PyNative and graph mode, on the CPU."""

    framework = "mindspore"
    thread = thread
    holds_gradients = False
    dtype_errors = r"d(ata )?type|input type must be same|but got .*Float|type of .* must be"

    def __init__(self, requires: str) -> None:
        self.requires = requires

    def version(self) -> str:
        """Return MindSpore's version."""
        return str(mindspore.__version__)

    def rank(self) -> int | None:
        """Return the number that `mindspore.communication` gave this process; None where it knows of no others."""
        return int(get_rank()) if get_group_size() > 1 else None

    def probe(self) -> None:
        """Have graphs compiled under policies; that the private hooks are there was looked at before they were imported."""
        compiling.install()

    def devices(self) -> tuple[str, ...]:
        """Return the device that this process computes on, and the CPU."""
        return tuple(dict.fromkeys(("cpu", device_in_use())))

    def device_names(self) -> Mapping[str, str]:
        return devices.names()

    def device_kind(self, device: object) -> str | None:
        return devices.kind_of(device)

    def support(self, device: str, dtype: str) -> Support:
        return Support.EMULATED if device == "cpu" else Support.NATIVE

    def slowdown(self, device: str, dtype: str) -> float:
        """Return the cost of emulation on the CPU; see `unamp.adapter.Adapter.slowdown`."""
        return {"float16": 2.2, "bfloat16": 2.4}[dtype] if device == "cpu" else 1.0

    def runtime(self) -> Mapping[str, Fact]:
        """MindSpore's kernels for the CPU are oneDNN's and its own; which instruction sets they use, it does not tell."""
        return {
            "build": device_in_use(),
            "threads": int(mindspore.get_context("runtime_num_threads")),
            "regions": "Python" if exchange is None else "C",
            # No version so far (2.10) is compiled for NumPy 2.
            "built_for_this_numpy": major_minor(np.__version__) < (2, 0),
        }

    def faster(self) -> str | None:
        return build_hint()

    def gaps(self) -> tuple[Gap, ...]:
        return (
            Gap(
                "primitives and kernels of one's own (ops.Custom)", "the vocabulary has no name for them: no rule reaches them"
            ),
            Gap(
                "sparse tensors",
                "what computes their values one by one (coo_relu, csr_exp) follows rules, and so does "
                "nn.SparseTensorDenseMatmul; coo_add and csr_softmax, which have kernels of their own, are left alone",
            ),
            Gap("C++ methods that were taken from the class Tensor before a region", "the original is what is called"),
            Gap(
                "`with` regions inside functions that mindspore.jit compiles",
                "MindSpore's compiler reads no such block, and they raise NotExpressible; decorate the function, or open the "
                "region around its call",
            ),
            Gap(
                'graphs that mindspore.jit captures with capture_mode="trace"',
                'no policy reaches them: called in a region they raise NotExpressible; use "ast"',
            ),
            Gap(
                'functions that mindspore.jit captures with capture_mode="bytecode"',
                "in a region, around or inside, they follow its policy, and nothing is captured: they run as in PyNative mode",
            ),
            Gap(
                "graphs that were compiled before unamp.decorate",
                "they keep the parameters' float32 values of then; compile after",
            ),
            Gap(
                "build_train_network of unamp.dialects.mindspore in GRAPH_MODE",
                "forward and backward run as in PyNative mode, under the policy; as part of a graph it raises NotExpressible",
            ),
            Gap(
                "custom_fwd(cast_inputs=...) on what MindSpore compiles as a whole",
                "the compiler runs no decorators, and nothing calls it where inputs could be cast: it raises NotExpressible in "
                "a region; on a part of a graph it is followed",
            ),
            Gap(
                "functools.partial and lru_cache in compiled graphs",
                "Python runs them when the graph runs, out of reach of the policy: in a region they raise NotExpressible",
            ),
            Gap(
                "views of a low tensor, by index, inside a region on the CPU",
                "MindSpore has no kernel for their gradient in bfloat16, so low[0] is a copy; low[0] = ... changes low",
            ),
            Gap(
                "threads that compute at the same time",
                "MindSpore itself crashes or hangs there, with a region and without: one at a time may call it",
            ),
            Gap(
                "the first call that takes plain numbers, and asnumpy() of a bfloat16 tensor, with NumPy 2",
                "MindSpore 2.10 is compiled with NumPy 1: with a region and without, that one call may raise SystemError, and "
                "asnumpy() raises TypeError: cast to float32 before it, or install numpy<2; `unamp doctor` says which it is",
            ),
        )

    def prepare(self, policy: Policy, device: str | None) -> Realisation:
        if device not in (None, device_in_use()):
            return ELSEWHERE
        probe_effects()
        return Activation(plans.plan(policy, device), cache=policy.cache)

    def how(self, op: str, policy: Policy, device: str) -> How:
        return plans.how(op, policy, device)

    def observe(self, sink: Sink, values: bool) -> AbstractContextManager[None]:
        def unchanging() -> plans.Plan:
            patches.acquire()
            return plans.without_policy(reporting=True)

        return observing.observe(sink, values, unchanging, patches.release)

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, Tensor)

    def cast(self, tensor: Any, dtype: str) -> Any:
        return cast(tensor, DTYPES[dtype])

    def dtype_of(self, tensor: Any) -> str:
        return dtype_name(tensor.dtype)

    def device_of(self, tensor: Any) -> str:
        return device_in_use()

    def native_policy(self, device: str) -> Policy | None:
        """Return None: MindSpore's own AMP changes networks, and is in force nowhere else."""
        return None

    def check_compiled(self, policy: Policy, device: str) -> None:
        """Check nothing: a graph can follow every policy."""

    def is_network(self, value: object) -> bool:
        return isinstance(value, nn.Cell)

    def wrap(self, network: Any, policy: Policy) -> Any:
        return networks.wrap(self, network, policy)

    def is_optimizer(self, value: object) -> bool:
        return isinstance(value, OPTIMIZERS)

    def scale_loss(self, loss: Any, scale: float) -> Any:
        return scaling.scale_loss(loss, scale)

    def backward(self, compute: Callable[[], tuple[Any, Any]], network: Any, optimizer: Any) -> tuple[Any, Any]:
        return scaling.backward(compute, optimizer)

    def all_finite(self, tensors: Sequence[Any]) -> Any:
        return scaling.all_finite(tensors)

    def gradients(self, optimizer: Any, given: Any) -> Gradients:
        return scaling.MindSporeGradients(optimizer, given)

    def decorate(self, networks: Sequence[Any], optimizers: Sequence[Any], decoration: Decoration) -> None:
        decorate(networks, optimizers, decoration)

    def layered(self) -> Layered:
        from unamp_mindspore.layers import MindSporeLayers  # few programs use it

        return MindSporeLayers()

    def made_by(self, tensor: Any) -> Iterator[str]:
        """Give nothing: what a tensor came from is not known."""
        return iter(())

    def report_registered(self, observer: Observer, record: OpRecord, tensors: Sequence[Any], result: Any) -> None:
        observing.report_registered(observer, record, tensors, result)

    def spelling(self, value: object) -> str | None:
        return spelling(value)

    def operations(self) -> Operations:
        from unamp_mindspore.conformance import MindSporeOperations

        return MindSporeOperations()
