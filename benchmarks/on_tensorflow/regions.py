"""The time to open and close a region."""

from __future__ import annotations

import tensorflow as tf

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons"]


def comparisons() -> list[Comparison]:
    region = unamp.autocast(dtype="bfloat16")
    names = {"region": region, "tf": tf}
    # TensorFlow has no region like ours. Its cheapest context manager shows the least cost.
    theirs = "with tf.name_scope('x'): pass"
    return [
        Comparison(
            f"tensorflow: region enter and exit, {where}",
            (
                Contender("tf.name_scope", theirs, names),
                Contender("unamp", "with region: pass", names, *outer, at_most=at_most),
            ),
        )
        for where, outer, at_most in (
            ("outermost", (), 100e-6),
            ("nested", (lambda: region,), 10e-6),
        )
    ]
