"""A user's program loads no module of the adapter that it does not use."""

from elsewhere import forked


def test_nothing_that_a_user_does_loads_conformance():
    code = """
import sys
import paddle, unamp
network = paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.BatchNorm1D(4))
optimizer = paddle.optimizer.SGD(0.1, parameters=network.parameters())
network, optimizer = unamp.decorate(network, optimizer, level="O2", dtype="bfloat16")
scaler = unamp.GradScaler()
with unamp.trace() as trace, unamp.autocast("cpu", dtype="bfloat16", allow=["add", paddle.nn.functional.relu]):
    loss = paddle.nn.functional.relu(network(paddle.randn([3, 4])) + 1).sum()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
unamp.explain(unamp.Policy(deny="linear"))
assert trace.records and "unamp_paddle.decoration" in sys.modules
print(*(name for name in sys.modules if "conformance" in name and name.startswith("unamp")))
"""  # noqa: E501
    assert forked("paddle", code).strip() == ""
