"""Inputs that operation types define as float32 stay float32 under every rule.

They are scales, boxes, thresholds, and ranges of quantization.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from unamp_tensorflow.listing import op_types
from unamp_tensorflow.state import FLOAT32

from unamp import Policy, policy_region

METHODS = "bilinear bicubic lanczos3 lanczos5 gaussian mitchellcubic area nearest".split()
MODES = {"eager": lambda function: function, "graph": lambda function: tf.function(function)}


def fixed_inputs(definition):
    return [
        each
        for each in definition.input_arg
        if each.type == FLOAT32 and not each.type_attr and not each.type_list_attr
    ]


#: Operation types with fixed inputs, without those that TensorFlow has removed since.
WITH_FIXED = [
    name
    for name in sorted(op_types())
    if fixed_inputs(op_def_registry.get(name))
    and hasattr(tf.raw_ops, name)
    and not op_def_registry.get(name).HasField("deprecation")
]


def attributes(definition):
    """Return a value for every attribute without a default; dtypes are integers if possible."""
    values = {}
    for each in definition.attr:
        allowed = [n for n in each.allowed_values.list.type if not tf.as_dtype(n).is_floating]
        if each.type == "type":
            number = each.allowed_values.list.type
            values[each.name] = tf.as_dtype(
                allowed[0] if allowed else number[0] if number else tf.int32
            )
        elif not each.HasField("default_value"):
            strings = each.allowed_values.list.s
            choices = {
                "int": max(1, each.minimum),
                "float": 0.5,
                "bool": False,
                "string": strings[0] if strings else b"a",
            }
            values[each.name] = choices.get(
                each.type, tf.TensorShape([1]) if each.type == "shape" else [1] * 4
            )
    return values


def add(name, floating):
    """Add a node to a graph of its own, with its fixed inputs in a dtype."""
    definition = op_def_registry.get(name)
    attrs = attributes(definition)
    with tf.Graph().as_default():
        inputs = {}
        for each in definition.input_arg:
            fixed = each in fixed_inputs(definition)
            dtype = (
                floating
                if fixed
                else attrs[each.type_attr]
                if each.type_attr
                else tf.as_dtype(each.type or tf.int32)
            )
            count = attrs.get(each.number_attr, 1) if each.number_attr else None
            made = [tf.compat.v1.placeholder(dtype) for _ in range(count or 1)]
            inputs[each.name] = made if count else made[0]
        stated = {attr: value for attr, value in attrs.items() if attr not in derived(definition)}
        getattr(tf.raw_ops, name)(**inputs, **stated)


def derived(definition):
    """Return the attributes that TensorFlow derives from the inputs."""
    return {
        n
        for each in definition.input_arg
        for n in (each.type_attr, each.number_attr, each.type_list_attr)
        if n
    }


def builds(name, floating):
    try:
        add(name, floating)
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


def test_every_operation_type_takes_low_values_for_them():
    possible = [name for name in WITH_FIXED if builds(name, tf.float32)]
    assert len(possible) > 0.8 * len(WITH_FIXED)
    assert {"ScaleAndTranslate", "AdjustContrastv2", "QuantizeV2", "NonMaxSuppression"} <= {
        *possible
    }
    for level in ("O1", "O3"):
        with policy_region(Policy(level, "bfloat16")):
            assert [name for name in possible if not builds(name, tf.bfloat16)] == []


@pytest.mark.parametrize("mode", MODES)
def test_low_values_for_them_are_widened_whatever_the_first_input_is(mode, low):
    images = tf.constant(np.arange(48).reshape(1, 4, 4, 3), tf.uint8)
    boxes = tf.constant([[0.0, 0.0, 0.5, 1.0]])
    calls = {
        "scale": lambda number: tf.raw_ops.ScaleAndTranslate(
            images=images, size=[2, 2], scale=number * [0.5, 0.5], translation=number * [0.0, 0.0]
        ),
        "boxes": lambda number: tf.image.crop_and_resize(images, number * boxes, [0], [2, 2]),
        "range": lambda number: tf.raw_ops.Dequantize(
            input=tf.bitcast(images, tf.quint8), min_range=number * -1.0, max_range=number
        ),
        "factor": lambda number: tf.raw_ops.AdjustContrastv2(
            images=tf.ones([1, 2, 2, 3]), contrast_factor=number
        ),
    }
    one = tf.constant(1.0)
    for call in calls.values():
        for level in ("O1", "O2", "O3"):
            with policy_region(Policy(level, low.name, preset="none")):
                found = MODES[mode](call)(tf.cast(one, low))
            np.testing.assert_allclose(
                tf.cast(found, tf.float32), tf.cast(call(one), tf.float32), rtol=2.0**-7
            )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("antialias", [False, True])
def test_images_are_resized_where_they_should_be(method, antialias, mode):
    # A scale rounded to bfloat16 would shift the image: errors of 0.05 and more.
    whole = tf.constant(np.random.randint(0, 255, (1, 30, 41, 3)), tf.uint8)
    floating = tf.cast(whole, tf.float32) / 255.0

    def resize(images):
        return tf.image.resize(images, [17, 23], method, antialias=antialias)

    exact, exact_whole = resize(floating), resize(whole)
    for level in ("O2", "O3"):
        with policy_region(Policy(level, "bfloat16")):
            found = MODES[mode](resize)(floating)
            found_whole = MODES[mode](resize)(whole)
        assert found.dtype == tf.bfloat16
        assert found_whole.dtype == exact_whole.dtype
        # The weights of a pixel add up to 1, some are negative; inputs and results are rounded
        # once.
        np.testing.assert_allclose(tf.cast(found, tf.float32), exact, atol=4 * 2.0**-8)
        np.testing.assert_array_equal(found_whole, exact_whole)


def test_a_user_names_how_images_are_resized(low):
    images = tf.random.normal([1, 6, 6, 3])
    with policy_region(Policy("O1", low.name, allow=["upsample_bilinear2d"])):
        assert tf.image.resize(images, [3, 3]).dtype == low
        assert tf.image.resize(images, [3, 3], "lanczos3").dtype == tf.float32
    with policy_region(Policy("O3", low.name, deny=["interpolate"])):
        assert tf.image.resize(tf.cast(images, low), [3, 3]).dtype == tf.float32
