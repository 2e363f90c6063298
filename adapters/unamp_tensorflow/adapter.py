"""The adapter for TensorFlow: `unamp.adapter.Adapter`, made of the modules beside it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import tensorflow as tf

from unamp.adapter import Fact, Operations, Realisation
from unamp.adapter.base import BaseAdapter
from unamp.adapter.layers import Layered
from unamp.adapter.open_traces import Sink
from unamp.adapter.state import ELSEWHERE
from unamp.policy import Policy
from unamp_tensorflow import (
    casting,
    compiling,
    decoration,
    devices,
    networks,
    observing,
    patches,
    plans,
    probing,
    scaling,
    spellings,
    watching,
)
from unamp_tensorflow.activation import Activation
from unamp_tensorflow.composite_tensors import VALUES
from unamp_tensorflow.hooks import HOOKS
from unamp_tensorflow.state import DTYPES, thread

if TYPE_CHECKING:
    from unamp_tensorflow.state import SomeTensor


class TensorFlowAdapter(BaseAdapter):
    """TensorFlow, and Keras where it computes with TensorFlow."""

    framework = "tensorflow"
    thread = thread
    dtypes = DTYPES
    holds_gradients = False
    dtype_errors = r"dtype|(expected|requested) .* (tensor|type)|of type (half|bfloat16|float)"

    device_names = staticmethod(devices.names)
    device_kind = staticmethod(devices.kind_of)
    device_of = staticmethod(devices.on)
    how = staticmethod(plans.how)
    dtype_of = staticmethod(casting.dtype_of)
    is_network = staticmethod(networks.is_network)
    wrap = staticmethod(networks.wrap)
    is_optimizer = staticmethod(scaling.is_optimizer)
    scale_loss = staticmethod(scaling.scale_loss)
    backward = staticmethod(scaling.backward)
    all_finite = staticmethod(scaling.all_finite)
    gradients = scaling.TensorFlowGradients
    decorate = staticmethod(decoration.decorate)
    report_registered = staticmethod(observing.report_registered)
    second_run = staticmethod(observing.second_run)
    opened = staticmethod(observing.opened)
    named_gradients = staticmethod(watching.named_gradients)
    numbers = staticmethod(watching.numbers)
    total = staticmethod(watching.total)
    fetched = staticmethod(watching.fetched)
    spelling = staticmethod(spellings.spelling)

    def probe(self) -> None:
        HOOKS.probe()
        patches.probe()
        probing.probe_effects()

    def runtime(self) -> Mapping[str, Fact]:
        """Return the build, the threads, and whether oneDNN is in use, if this version tells."""
        try:
            from tensorflow.python.util._pywrap_util_port import IsMklEnabled
        except ImportError:
            onednn = {}
        else:
            onednn = {"onednn": bool(IsMklEnabled())}
        # 0 means that TensorFlow will choose.
        chosen = int(tf.config.threading.get_intra_op_parallelism_threads())
        threads = {"threads": chosen} if chosen else {}
        return {"build": "cuda" if tf.test.is_built_with_cuda() else "cpu", **onednn, **threads}

    def prepare(self, policy: Policy, device: str | None) -> Realisation:
        if device is not None and device not in self.devices():
            return ELSEWHERE
        return Activation(plans.plan(policy))

    def observe(self, sink: Sink, values: bool) -> AbstractContextManager[None]:
        plan = plans.TensorFlowPlan.without_policy(reporting=True)
        return observing.observe(sink, values, patches.patched(plan), plan)

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, (tf.Tensor, tf.Variable, *VALUES))

    def cast(self, tensor: SomeTensor, dtype: str) -> SomeTensor:
        return casting.cast(tensor, DTYPES[dtype])

    def native_policy(self, device: str) -> Policy | None:
        """Return the policy of grappler's rewrite; None unless it is on and a graph is built."""
        if tf.executing_eagerly() or not tf.config.optimizer.get_experimental_options().get(
            "auto_mixed_precision"
        ):
            return None
        return Policy("O1", "float16", preset="native")

    def layered(self) -> Layered:
        from unamp.adapter.keras_layers import KerasLayers  # few programs use it

        return KerasLayers(
            lambda layer, region: compiling.layer_rules.put(layer, region, patches.compilers)
        )

    def operations(self) -> Operations:
        from unamp_tensorflow.conformance import TensorFlowOperations

        return TensorFlowOperations()
