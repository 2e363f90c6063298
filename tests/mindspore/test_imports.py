"""A user's program loads no module of the adapter that it does not use."""

import mindspore
import numpy as np
import pytest
from elsewhere import forked, python
from mindspore import Tensor

from unamp.adapter.registry import adapter_for


def test_nothing_that_a_user_does_loads_conformance():
    code = """
import contextlib, sys
import mindspore, unamp
from mindspore import nn, ops
with contextlib.suppress(SystemError):  # MindSpore's first call with numbers, where it is compiled with another NumPy
    ops.zeros((1,))
network = nn.Dense(4, 4)
optimizer = nn.SGD(network.trainable_params(), 0.1)
network, optimizer = unamp.decorate(network, optimizer, level="O2", dtype="bfloat16")
with unamp.trace() as trace, unamp.autocast(dtype="bfloat16", allow=["add", ops.relu]):
    ops.relu(network(ops.ones((3, 4), mindspore.float32)) + 1).astype(mindspore.float32).asnumpy()
unamp.explain(unamp.Policy(deny="linear"))
assert trace.records and "unamp_mindspore.decoration" in sys.modules
print("loaded:", *(name for name in sys.modules if "conformance" in name and name.startswith("unamp")))
"""  # noqa: E501
    assert forked("mindspore", code).strip().endswith("loaded:")


@pytest.mark.parametrize("imports", ["import mindspore, unamp", "import unamp, mindspore"])
def test_a_region_in_a_graph_is_refused_where_nothing_was_opened_before(tmp_path, imports):
    (tmp_path / "program.py").write_text(
        f"""
{imports}
from unamp import autocast

@mindspore.jit
def by_its_short_name(x):
    with autocast():
        return x @ x

@mindspore.jit
def by_its_module(x):
    with unamp.autocast():
        return x @ x

for call in (by_its_short_name, by_its_module):
    try:
        call(mindspore.Tensor([[1.0]], mindspore.float32))
    except unamp.NotExpressible as error:
        print("refused:", error)
"""
    )
    assert python(tmp_path / "program.py").count("refused: autocast is used inside a function") == 2


def test_the_adapter_tells_whether_mindspore_is_built_for_this_numpy():
    low = Tensor(np.ones(2, np.float32)).astype(mindspore.bfloat16)
    if adapter_for("mindspore").runtime()["built_for_this_numpy"]:
        assert low.asnumpy().dtype.name == "bfloat16"
    else:
        with pytest.raises(TypeError):
            low.asnumpy()
