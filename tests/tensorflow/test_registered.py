"""Registered operations of a user on TensorFlow keep the promises of the module `registered`."""

from dataclasses import dataclass

import pytest
import registered
import tensorflow as tf
from registered import test_promises  # noqa: F401

import unamp


@tf.custom_gradient
def doubled(x):
    return x + x, lambda gradient: 2 * gradient


def test_graphs():
    registered.a_compiled_function_follows("tensorflow", tf.function)


def test_a_function_with_a_gradient_of_its_own():
    registration = unamp.register_operation("unamp_tests::doubled", doubled, rule="low")
    x = tf.fill([4], 1 + 2.0**-9)
    with unamp.autocast(dtype="bfloat16"), tf.GradientTape() as tape:
        tape.watch(x)
        low = doubled(x)
        total = tf.reduce_sum(tf.cast(low, tf.float32))
    gradient = tape.gradient(total, x)
    registration.undo()
    assert (low.dtype, float(low[0])) == (tf.bfloat16, 2.0)
    assert (gradient.dtype, float(gradient[0])) == (tf.float32, 2.0)


class Pair(tf.experimental.ExtensionType):
    x: tf.Tensor
    w: tf.Tensor


@dataclass
class Flat:
    x: tf.Tensor
    w: tf.Tensor

    def __tf_flatten__(self):
        return (), (self.x, self.w)

    @classmethod
    def __tf_unflatten__(cls, metadata, components):
        return cls(*components)


class Wide(Pair):
    def __validate__(self):
        if self.x.dtype != tf.float32:
            raise TypeError("only float32")


@pytest.mark.parametrize("container", [Pair, Flat])
def test_tensors_in_containers_are_cast(container):
    registered.a_container_is_opened("tensorflow", container)


def test_a_container_that_refuses_is_not_cast_in_silence():
    operation = unamp.register_operation("unamp_tests::wide", rule="low")
    with unamp.autocast(dtype="bfloat16"), pytest.raises(TypeError, match="only float32"):
        operation(lambda pair: pair.x)(Wide(tf.ones(2), tf.ones(2)))
    operation.undo()


def test_second_runs_that_the_network_would_notice():
    x, variable = tf.ones([2, 2]), tf.Variable(1.0)
    registered.a_shadow_is_left_out(
        lambda x: x + tf.random.normal([2, 2]), x, "it runs RandomStandardNormal"
    )
    registered.a_shadow_is_left_out(
        lambda x: x + variable.assign_add(1.0), x, "it runs AssignAddVariableOp"
    )
    assert float(variable) == 2.0  # added once, not twice
    registered.a_shadow_is_left_out(tf.function(lambda x: x + 1), x, "it runs __inference")


def test_a_registered_operation_in_a_graph_is_not_reported():
    with (
        registered.registered("tensorflow", "low") as ops,
        unamp.trace(values=True, shadow="bfloat16") as trace,
    ):
        tf.function(registered.product)(ops.tensor(registered.X), ops.tensor(registered.W))
    assert trace.records == []
