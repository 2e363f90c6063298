"""Check that a region has an effect in this TensorFlow, by the dtypes of a few tiny operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import function_context

from unamp.adapter.observing import unobserved
from unamp.errors import FrameworkNotSupported
from unamp.policy import Policy
from unamp_tensorflow.activation import Activation
from unamp_tensorflow.plans import plan
from unamp_tensorflow.state import thread

T = TypeVar("T")

_POLICY = Policy("O1", "bfloat16", preset="none", allow=["matmul", "gelu"])

#: One operation for each way in which calls are intercepted.
_CALLS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "raw_ops.MatMul": lambda one: tf.raw_ops.MatMul(a=one, b=one),
    "nn.gelu": tf.nn.gelu,
}


def probe_effects() -> None:
    """Check that a region casts, eagerly and in a graph, and that operations are float32 after it.

    Check as well that TensorFlow's keys of graphs differ inside and outside of a region.

    Raises:
        FrameworkNotSupported: naming the version of TensorFlow, an operation, and its dtypes.
    """
    with unobserved(thread), tf.init_scope():
        # `init_scope` leaves the graph of a traced function, which may open the first region.
        if tf.executing_eagerly():
            _check("eagerly")
            if (
                _inside(function_context.make_function_context)
                == function_context.make_function_context()
            ):
                _raise("a traced function has the same key inside a region and outside")
    with unobserved(thread), tf.Graph().as_default():
        _check("in a graph")


def _check(mode: str) -> None:
    with tf.device("/device:CPU:0"):
        one = tf.constant([[1.0]])
        for name, call in _CALLS.items():
            found = _inside(partial(call, one)).dtype.name, call(one).dtype.name
            if found != ("bfloat16", "float32"):
                _raise(
                    f"{mode} tf.{name} gives {found[0]} inside a region and {found[1]} outside, "
                    "not bfloat16 and float32"
                )


def _inside(call: Callable[[], T]) -> T:
    region = Activation(plan(_POLICY))
    token = region.enter()
    try:
        return call()
    finally:
        region.exit(token)


def _raise(why: str) -> None:
    raise FrameworkNotSupported(
        f"tensorflow {tf.__version__}: {why}: unamp's hooks do not reach what this version "
        "computes with"
    )
