"""The time of one eager operation in a region, after the last region, and of a function's trace."""

from __future__ import annotations

from functools import partial

import tensorflow as tf

import unamp
from benchmarks.measure import Comparison, Contender
from benchmarks.processes import Elsewhere

__all__ = ["aftermath", "comparisons", "tracing"]

_LEFT_ALONE = ("tf.nn.relu(x)", "x + y", "tf.tanh(x)")

#: The statement with unamp, and the statement without it.
_CAST = {
    "tf.matmul(x, y)": "tf.matmul(tf.cast(x, tf.bfloat16), tf.cast(y, tf.bfloat16))",
    "tf.matmul(x, variable)": "tf.matmul(tf.cast(x, tf.bfloat16), tf.cast(variable, tf.bfloat16))",
    "tf.nn.softmax(low)": "tf.nn.softmax(tf.cast(low, tf.float32))",
}


def _names() -> dict[str, object]:
    x, y = tf.ones([4, 4]), tf.ones([4, 4])
    return {"tf": tf, "x": x, "y": y, "low": tf.cast(x, tf.bfloat16), "variable": tf.Variable(x)}


def _region() -> unamp.Region:
    return unamp.autocast(dtype="bfloat16")


def comparisons() -> list[Comparison]:
    alone = [
        Comparison(
            f"tensorflow: {statement}, which the policy leaves alone",
            (
                Contender("untouched", statement, _names()),
                Contender("unamp, in a region", statement, _names(), _region, goal=1.15),
            ),
        )
        for statement in _LEFT_ALONE
    ]
    cast = [
        Comparison(
            f"tensorflow: {statement}, cast",
            (
                Contender("tf.cast by hand", by_hand, _names()),
                Contender("unamp, in a region", statement, _names(), _region, goal=1.0),
            ),
        )
        for statement, by_hand in _CAST.items()
    ]
    return alone + cast


def tracing() -> list[Comparison]:
    weights = [tf.Variable(tf.random.normal([16, 16])) for _ in range(20)]

    def network(x: tf.Tensor) -> tf.Tensor:
        for weight in weights:
            for _ in range(5):
                x = tf.nn.relu(tf.matmul(x, weight) + 1.0)
                x = tf.tanh(x) * 0.5 + x
        return x

    names = {"tf": tf, "network": network, "x": tf.ones([4, 16])}
    statement = "tf.function(network, autograph=False).get_concrete_function(x)"
    return [
        Comparison(
            "tensorflow: tracing 600 operations",
            (
                Contender("untouched", statement, names),
                Contender("unamp, in a region", statement, names, _region, goal=1.3),
            ),
        )
    ]


def aftermath() -> list[Comparison]:
    return [
        Comparison(
            f"tensorflow: {statement}, after the last region",
            (
                Elsewhere("in a process without a region", _nothing, partial(_plain, statement)),
                Elsewhere("after a region", _one_region, partial(_plain, statement), goal=1.02),
            ),
        )
        for statement in ("x + y", "tf.nn.gelu(x)")
    ]


def _plain(statement: str) -> Contender:
    return Contender("", statement, _names())


def _nothing() -> None:
    pass


def _one_region() -> None:
    with _region():
        tf.nn.gelu(tf.matmul(tf.ones([4, 4]), tf.ones([4, 4])))
