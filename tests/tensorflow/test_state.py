"""Private hooks of TensorFlow are probed first, and every patch is undone in any case."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager.polymorphic_function import function_context
from tensorflow.python.framework import op_def_library
from tensorflow.python.ops import cond_v2, tensor_array_ops
from unamp_tensorflow import calls, finding, patches
from unamp_tensorflow.casting import execute
from unamp_tensorflow.probing import probe_effects

import unamp
from unamp.adapter.registry import adapter_for
from unamp.adapter.replacing import CodePatch


def patched():
    """Return the hooks that are not as TensorFlow made them."""
    changes = [
        *patches._patches().patches,
        *(each.patch for each in (*finding.functions(), *finding.keras())),
    ]
    return [c.function.__qualname__ for c in changes if isinstance(c, CodePatch) and c.applied]


def test_the_probe_passes_here():
    adapter_for("tensorflow").probe()


@pytest.mark.parametrize(
    ("home", "name", "message"),
    [
        (op_def_library, "_apply_op_helper", "op_def_library._apply_op_helper"),
        (cond_v2, "cond_v2", "cond_v2.cond_v2"),
        (tensor_array_ops.TensorArray, "write", "TensorArray.write"),
        (pywrap_tfe, "TFE_Py_FastPathExecute", "pywrap_tfe.TFE_Py_FastPathExecute"),
    ],
)
def test_a_hook_that_is_missing_is_named_with_the_version(monkeypatch, home, name, message):
    monkeypatch.delattr(home, name)
    with pytest.raises(
        unamp.FrameworkNotSupported, match=rf"tensorflow {tf.__version__} has no .*{message}"
    ):
        adapter_for("tensorflow").probe()


@pytest.mark.parametrize(
    ("home", "name", "instead", "message"),
    [
        (
            calls.OpTypeAction,
            "eager",
            lambda self, ctx, name, args: execute(ctx, "MatMul", name, *args),
            "eagerly",
        ),
        (
            calls.OpTypeAction,
            "graph",
            lambda self, own, name, given: own("MatMul", name, **given),
            "in a graph",
        ),
        (function_context, "make_function_context", lambda *args: 1, "same key"),
    ],
)
def test_a_hook_without_effect_is_noticed(monkeypatch, home, name, instead, message):
    monkeypatch.setattr(home, name, instead)
    with pytest.raises(
        unamp.FrameworkNotSupported, match=rf"tensorflow {tf.__version__}: .*{message}"
    ):
        probe_effects()


def test_the_effect_is_looked_at_where_the_first_region_is_opened():
    @tf.function
    def traced(x):
        probe_effects()
        return x + 1.0

    assert float(traced(tf.constant(1.0))) == 2.0
    with tf.Graph().as_default():
        probe_effects()
    with unamp.autocast(dtype="float16"):
        probe_effects()
        assert (tf.ones([1, 1]) @ tf.ones([1, 1])).dtype == tf.float16


def test_everything_is_put_in_once_and_taken_out_with_the_last_region():
    with unamp.autocast(dtype="bfloat16"):
        inside = patched()
        with unamp.autocast(dtype="float16"), unamp.trace():
            pass
        assert set(inside) <= set(patched())
    assert inside
    assert patched() == []
    assert pywrap_tfe.TFE_Py_FastPathExecute is execute


def test_exceptions_take_everything_out(matrix):
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), unamp.autocast(dtype="bfloat16"):
            raise error
        assert patched() == []
    with pytest.raises(Exception, match="division"), unamp.autocast(dtype="bfloat16"):
        tf.function(lambda x: 1 // 0)(matrix)
    with (
        pytest.raises(tf.errors.InvalidArgumentError),
        unamp.trace(),
        unamp.autocast(dtype="bfloat16"),
    ):
        matrix @ tf.ones([5, 5])
    assert patched() == []
    assert patches.installed.open == 0


def test_somebody_elses_change_inside_a_region_stays():
    original = pywrap_tfe.TFE_Py_FastPathExecute

    def theirs(*args):
        return original(*args)

    try:
        with unamp.autocast(dtype="bfloat16"):
            pywrap_tfe.TFE_Py_FastPathExecute = theirs
        assert pywrap_tfe.TFE_Py_FastPathExecute is theirs
    finally:
        pywrap_tfe.TFE_Py_FastPathExecute = original


def test_bad_arguments_change_nothing():
    for bad in ({"dtype": "int8"}, {"allow": "no_such_operation"}, {"level": "O9"}):
        with pytest.raises(ValueError, match="valid|unknown"):
            unamp.autocast(**bad)
    assert patched() == []
