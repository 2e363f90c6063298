"""Private hooks of TensorFlow are checked first; every patch is taken out, whatever happened."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.framework import op_def_library
from tensorflow.python.ops import cond_v2, gen_math_ops, tensor_array_ops
from unamp_tensorflow import finding, patches
from unamp_tensorflow.casting import execute

import unamp
from unamp.adapter.registry import adapter_for
from unamp.adapter.replacing import CodePatch


def patched():
    """Return the hooks that are not as TensorFlow made them."""
    changes = [*patches._patches().patches, *(each.patch for each in (*finding.functions(), *finding.keras()))]
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
    with pytest.raises(unamp.FrameworkNotSupported, match=rf"tensorflow {tf.__version__} has no .*{message}"):
        adapter_for("tensorflow").probe()


def test_a_wrapper_that_looks_up_something_else_is_noticed(monkeypatch):
    def mat_mul(a, b):
        return a, b

    monkeypatch.setattr(gen_math_ops, "mat_mul", mat_mul)
    with pytest.raises(unamp.FrameworkNotSupported, match="no look-up of pywrap_tfe in the wrappers"):
        adapter_for("tensorflow").probe()


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
    with pytest.raises(tf.errors.InvalidArgumentError), unamp.trace(), unamp.autocast(dtype="bfloat16"):
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
