"""Low tensors become float32 where TensorFlow states float32.

This holds in conversions, variables, queues, tables, signatures, and finished graphs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import unamp


class Doubling(tf.Module):
    """A module with a signature, to be saved."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def __call__(self, x: Any) -> Any:
        return x + x


def low(matrix: Any) -> Any:
    product = tf.matmul(matrix, matrix)
    assert product.dtype == tf.bfloat16
    return product


def through_a_queue(x: Any) -> Any:
    queue = tf.queue.FIFOQueue(1, [tf.float32], [[4, 4]])
    queue.enqueue(x)
    return queue.dequeue()


def through_a_table(x: Any) -> Any:
    table = tf.lookup.experimental.MutableHashTable(
        tf.int64, tf.float32, default_value=tf.zeros([4])
    )
    keys = tf.range(4, dtype=tf.int64)
    table.insert(keys, x)
    return table.lookup(keys)


PLACES = {
    "convert_to_tensor": lambda x: tf.convert_to_tensor(x, tf.float32),
    "convert_to_tensor of version 1": lambda x: tf.compat.v1.convert_to_tensor(x, dtype="float32"),
    "Variable": lambda x: tf.Variable(x, dtype=tf.float32),
    "scatter_update of version 1": lambda x: tf.compat.v1.scatter_update(
        tf.Variable(tf.zeros([4, 4])), tf.range(4), x
    ),
    "FIFOQueue": through_a_queue,
    "MutableHashTable": through_a_table,
}


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("place", PLACES)
def test_a_low_tensor_is_widened_where_float32_is_stated(
    matrix: Any, place: str, level: Any
) -> None:
    x = matrix[:4, :4]
    with unamp.autocast(level=level, dtype="bfloat16"):
        kept = PLACES[place](low(x))
    assert kept.dtype == tf.float32
    tf.debugging.assert_equal(
        tf.convert_to_tensor(kept),
        tf.cast(tf.matmul(tf.cast(x, tf.bfloat16), tf.cast(x, tf.bfloat16)), tf.float32),
    )


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_function_whose_signature_says_float32_takes_low_tensors(
    matrix: Any, level: Any, tmp_path: Path
) -> None:
    x, module = matrix[:4, :4], Doubling()
    tf.saved_model.save(module, str(tmp_path), signatures=module.__call__)
    loaded = tf.saved_model.load(str(tmp_path))
    finished = tf.function(lambda x: x + x).get_concrete_function(tf.TensorSpec([4, 4], tf.float32))
    variable = tf.Variable(x)
    with unamp.autocast(level=level, dtype="bfloat16"), tf.GradientTape() as tape:
        given = low(variable)
        found = [
            module(given),
            loaded(given),
            loaded.signatures["serving_default"](x=given)["output_0"],
            finished(given),
        ]
        total = tf.add_n([tf.reduce_sum(tf.cast(each, tf.float32)) for each in found])
    for each in found:
        tf.debugging.assert_equal(tf.cast(each, tf.float32), tf.cast(given + given, tf.float32))
    # these graphs are finished: no policy reaches them
    assert [each.dtype for each in found[1:]] == [tf.float32] * 3
    gradient = tape.gradient(total, variable)
    assert gradient.dtype == tf.float32
    assert float(tf.reduce_max(tf.abs(gradient))) > 0


def test_nothing_is_narrowed_and_nothing_converted_outside(matrix: Any) -> None:
    product = tf.cast(matrix, tf.bfloat16)
    with pytest.raises(ValueError, match="requested dtype"):
        tf.convert_to_tensor(product, tf.float32)
    with unamp.autocast(dtype="bfloat16"), pytest.raises(ValueError, match="requested dtype"):
        tf.convert_to_tensor(matrix, tf.bfloat16)
