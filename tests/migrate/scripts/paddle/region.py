"""A region around the forward pass, with a user's own lists."""

import paddle

paddle.seed(0)
model = paddle.nn.Sequential(paddle.nn.Linear(8, 16), paddle.nn.ReLU(), paddle.nn.Linear(16, 4))
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
x, y = paddle.randn([32, 8]), paddle.randn([32, 4])

for _ in range(4):
    with paddle.amp.auto_cast(
        custom_white_list={"elementwise_add"}, custom_black_list={"relu"}, dtype="bfloat16"
    ):
        out = model(x)
        loss = paddle.nn.functional.mse_loss(out + out, y)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()

RESULT = [p.numpy() for p in model.parameters()]
