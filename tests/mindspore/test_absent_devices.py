"""Programs of MindSpore for an absent device cannot be read, and the suite gives the reason."""

import mindspore
import pytest
from unamp_conformance.subjects import Subject


def test_a_graph_for_ascend_is_refused() -> None:
    with pytest.raises(RuntimeError) as refused:
        mindspore.set_context(device_target="Ascend")
    assert Subject("mindspore", "cpu").missing().rpartition(": ")[2] in str(refused.value)
    assert mindspore.get_context("device_target") == "CPU"
