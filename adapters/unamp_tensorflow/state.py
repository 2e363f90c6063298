"""What this thread computes under, and TensorFlow's types that everything here asks about."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from unamp_tensorflow.plans import Plan

__all__ = ["BFLOAT16", "DTYPES", "ELIGIBLE", "FLOAT16", "FLOAT32", "NAMES", "thread"]

#: Dtypes by their number, as TensorFlow's C++ has them: comparing numbers costs a tenth of comparing dtype objects.
FLOAT32: int = tf.float32.as_datatype_enum
FLOAT16: int = tf.float16.as_datatype_enum
BFLOAT16: int = tf.bfloat16.as_datatype_enum

ELIGIBLE = frozenset({FLOAT16, BFLOAT16, FLOAT32})
DTYPES = {"float16": FLOAT16, "bfloat16": BFLOAT16, "float32": FLOAT32}
NAMES = {number: name for name, number in DTYPES.items()}


class Thread(threading.local):
    """One thread's state.

    Attributes:
        plan: what the innermost region made of its policy; None outside regions and while one is suspended.
        sink: where `unamp.trace` wants operations reported.
        parameters: inside a layer that is one operation and low, its parameters by their ids, each with its cast.
        recorded: whether the gradient of the node being added to a graph is on the tape already.
    """

    plan: Plan | None = None
    sink: Any = None
    parameters: dict[int, tuple[Any, Any]] | None = None
    recorded: bool = False


thread = Thread()
