"""The adapter for TensorFlow: the contract of `unamp.adapter`, carried out by the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from unamp.adapter import CapturesNothing, Decoration, Fact, Gap, Gradients, How, Operations, OpRecord, Realisation, Support
from unamp.adapter.hooks import Hooks
from unamp.adapter.layers import Layered
from unamp.adapter.observer import Observer, Sink
from unamp.adapter.registered import PlanDecides
from unamp.adapter.state import ELSEWHERE
from unamp.policy import Policy
from unamp_tensorflow import casting, devices, networks, observing, patches, plans, scaling
from unamp_tensorflow.activation import Activation
from unamp_tensorflow.composite_tensors import VALUES
from unamp_tensorflow.decoration import decorate
from unamp_tensorflow.probing import probe_effects
from unamp_tensorflow.spellings import spelling
from unamp_tensorflow.state import DTYPES, Plan, thread

__all__ = ["TensorFlowAdapter"]

GAPS = (
    Gap(
        "casting a float32 variable once (cache)",
        "TensorFlow keeps no version of a variable that would tell an old cast from a new one, so every use casts; in "
        "tf.function grappler merges the casts of one variable",
    ),
    Gap(
        "functions that were traced outside (ConcreteFunction, a loaded SavedModel)",
        "their graphs are finished; a region does not change them",
    ),
    Gap("control flow of version 1 (tf.compat.v1.disable_control_flow_v2)", "its loops and branches are left alone"),
    Gap(
        "a region limited to the CPU on a machine with a GPU, or the other way round",
        "where a node of a graph runs is decided later, so such a region covers both",
    ),
    Gap(
        "GradScaler.scale inside tf.function",
        "the scale of that moment would stay in the graph; scale the loss outside, or hand the function the scale as a tensor",
    ),
    Gap(
        "what grappler decides because of other operations than an operation's inputs (preset 'tensorflow')",
        "it rewrites whole graphs. For it a clear operation before an allowed one is low, and an infer operation is float32 "
        "that no allowed one follows, whose result is fetched, or that a denied one is before, however far; here both follow "
        "their low inputs. A list of tensors that states float32 stays float32, and an explicit cast to float32 casts",
    ),
    Gap("the preset 'native'", "TensorFlow's own rewriter, grappler, works on whole graphs and for the whole process"),
)


class TensorFlowAdapter(CapturesNothing, PlanDecides):
    """TensorFlow, and Keras where it computes with TensorFlow.

    Args:
        requires: the versions of TensorFlow that it works with.
        hooks: the private names that it uses.
    """

    framework = "tensorflow"
    thread = thread
    holds_gradients = False
    dtype_errors = r"dtype|(expected|requested) .* (tensor|type)|of type (half|bfloat16|float)"

    def __init__(self, requires: str, hooks: Hooks) -> None:
        self.requires = requires
        self._hooks = hooks

    def version(self) -> str:
        """Return TensorFlow's version."""
        return str(tf.__version__)

    def probe(self) -> None:
        """Check the private hooks and their effect; see `unamp.adapter.Adapter.probe`."""
        self._hooks.probe()
        patches.probe()
        probe_effects()

    def devices(self) -> tuple[str, ...]:
        """Return the CPU, and a GPU where TensorFlow finds one, or a TPU."""
        return devices.devices()

    def device_names(self) -> Mapping[str, str]:
        return devices.names()

    def device_kind(self, device: object) -> str | None:
        return devices.kind_of(device)

    def support(self, device: str, dtype: str) -> Support:
        """Return native support; single operation types without a kernel are emulated."""
        return Support.NATIVE if device in self.devices() else Support.UNSUPPORTED

    def slowdown(self, device: str, dtype: str) -> float:
        return 1.0

    def runtime(self) -> Mapping[str, Fact]:
        """Return the build, oneDNN (which TensorFlow's own tests ask; not every version may tell) and threads."""
        try:
            from tensorflow.python.util._pywrap_util_port import IsMklEnabled
        except ImportError:
            onednn = {}
        else:
            onednn = {"onednn": bool(IsMklEnabled())}
        chosen = int(tf.config.threading.get_intra_op_parallelism_threads())  # 0 means that TensorFlow chooses, later
        threads = {"threads": chosen} if chosen else {}
        return {"build": "cuda" if tf.test.is_built_with_cuda() else "cpu", **onednn, **threads}

    def gaps(self) -> tuple[Gap, ...]:
        return GAPS

    def prepare(self, policy: Policy, device: str | None) -> Realisation:
        if device is not None and device not in self.devices():
            return ELSEWHERE
        return Activation(plans.plan(policy))

    def how(self, op: str, policy: Policy, device: str) -> How:
        return plans.how(op, policy, device)

    def observe(self, sink: Sink, values: bool) -> AbstractContextManager[None]:
        def acquire() -> Plan:
            plan = plans.without_policy()
            patches.acquire(plan)
            return plan

        return observing.observe(sink, values, acquire, patches.release)

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, (tf.Tensor, tf.Variable, *VALUES))

    def cast(self, tensor: Any, dtype: str) -> Any:
        return casting.cast(tensor, DTYPES[dtype])

    def dtype_of(self, tensor: Any) -> str:
        return casting.dtype_of(tensor)

    def device_of(self, tensor: Any) -> str:
        return devices.on(tensor)

    def native_policy(self, device: str) -> Policy | None:
        """Return the policy of grappler's rewrite of graphs, where a graph is being built and that is switched on."""
        if tf.executing_eagerly() or not tf.config.optimizer.get_experimental_options().get("auto_mixed_precision"):
            return None
        return Policy("O1", "float16", preset="native")

    def is_network(self, value: object) -> bool:
        """Return whether a value is a Keras model."""
        return networks.is_network(value)

    def wrap(self, network: Any, policy: Policy) -> Any:
        """Return a Keras model that computes under a policy, floating results in float32, parameters as they are."""
        return networks.wrap(network, policy)

    def is_optimizer(self, value: object) -> bool:
        return scaling.is_optimizer(value)

    def scale_loss(self, loss: Any, scale: float) -> Any:
        return scaling.scale_loss(loss, scale)

    def backward(self, compute: Callable[[], tuple[Any, Any]], network: Any, optimizer: Any) -> tuple[Any, Any]:
        return scaling.backward(compute, network, optimizer)

    def all_finite(self, tensors: Sequence[Any]) -> Any:
        return scaling.all_finite(tensors)

    def gradients(self, optimizer: Any, given: Any) -> Gradients:
        return scaling.TensorFlowGradients(optimizer, given)

    def decorate(self, networks: Sequence[Any], optimizers: Sequence[Any], decoration: Decoration) -> None:
        decorate(networks, optimizers, decoration)

    def layered(self) -> Layered:
        from unamp_tensorflow.layers import layered  # few programs use it

        return layered()

    def made_by(self, tensor: Any) -> Iterator[str]:
        """Give nothing: what a tensor came from is not known."""
        return iter(())

    def report_registered(self, observer: Observer, record: OpRecord, tensors: Sequence[Any], result: Any) -> None:
        observing.report_registered(observer, record, tensors, result)

    def spelling(self, value: object) -> str | None:
        return spelling(value)

    def operations(self) -> Operations:
        from unamp_tensorflow.conformance import TensorFlowOperations

        return TensorFlowOperations()
