"""A scaler with `minimize`; on a CPU Paddle's own does nothing."""

import paddle
from paddle.amp import GradScaler, auto_cast

paddle.seed(1)
model = paddle.nn.Sequential(
    paddle.nn.Conv2D(3, 4, 3), paddle.nn.Flatten(), paddle.nn.Linear(64, 3)
)
optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
scaler = GradScaler(init_loss_scaling=2.0**8, incr_every_n_steps=100)
x, y = paddle.randn([8, 3, 6, 6]), paddle.randn([8, 3])

for _ in range(4):
    with auto_cast(level="O1", dtype="bfloat16"):
        loss = paddle.nn.functional.mse_loss(model(x), y)
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.minimize(optimizer, scaled)
    optimizer.clear_grad()

RESULT = [p.numpy() for p in model.parameters()]
