"""A decorated forward pass, in torch's words and in Paddle's, with separate `step` and `update`."""

import paddle
from paddle import nn


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 10), nn.Linear(10, 3)

    @paddle.amp.auto_cast(dtype="bfloat16", level="OD")
    def forward(self, x):
        return self.outer(nn.functional.tanh(self.inner(x)))


paddle.seed(4)
model = Net()
optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())
scaler = paddle.amp.GradScaler(True, 128.0, 2.0, 0.5, 50)
x, y = paddle.randn([8, 5]), paddle.randn([8, 3])
for _ in range(3):
    with paddle.autocast("gpu", "bfloat16"):
        loss = paddle.nn.functional.l1_loss(model(x).astype("float32") @ y.t(), y @ y.t())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()

RESULT = [p.numpy() for p in model.parameters()]
