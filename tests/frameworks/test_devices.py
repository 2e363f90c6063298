"""With two frameworks imported, a word for a device belongs to the right one."""

from __future__ import annotations

from elsewhere import python

SCRIPT = """
import warnings
import torch, tensorflow as tf, unamp

def said(*args, **kwargs):
    try:
        unamp.autocast(*args, **kwargs)
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was raised")

cpu = tf.config.list_physical_devices()[0]
assert unamp.autocast(cpu).device == unamp.autocast(torch.device("cpu")).device == "cpu"
assert unamp.autocast("meta").framework == "torch"
assert unamp.autocast("CPU:1", framework="tensorflow").framework == "tensorflow"

other = said(torch.device("meta"), framework="tensorflow")
assert "is one of torch's devices, and the region is for tensorflow; valid" in other, other
assert other.endswith("tensorflow has CPU"), other
other = said(cpu, framework="torch")
assert "is one of tensorflow's devices, and the region is for torch" in other, other
assert other.endswith("torch has cpu, meta"), other

def warned(device):
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        region = unamp.autocast(device)
    assert not region.policy.active, region
    return str(given[-1].message), region.framework

assert warned("mps") == ("there is no device 'mps' here: torch has cpu, meta; a region for it changes nothing", "torch")
assert warned("TPU:0") == ("there is no device 'TPU:0' here: tensorflow has CPU; a region for it changes nothing", "tensorflow")
both, framework = warned("cuda")
assert "torch has cpu, meta" in both and "tensorflow has CPU" in both and framework is None, both
unknown = said("bogus")
assert "torch has cpu, meta" in unknown and "tensorflow has CPU" in unknown, unknown
"""  # noqa: E501


def test_whose_word_a_device_is() -> None:
    # a GPU would be in the texts, too
    python("-W", "ignore", "-c", SCRIPT, CUDA_VISIBLE_DEVICES="")
