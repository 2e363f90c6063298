"""Paddle's older names, and a region that is off inside another."""

import paddle
from paddle.amp import AmpScaler, amp_guard

paddle.seed(3)
weight = paddle.create_parameter([8, 4], "float32")
optimizer = paddle.optimizer.SGD(0.1, parameters=[weight])
scaler = AmpScaler(enable=True, init_loss_scaling=64)
x = paddle.randn([16, 8])
for _ in range(3):
    with amp_guard(True, dtype="bfloat16"):
        product = x @ weight
        with amp_guard(enable=False, dtype="float32"):
            exact = product.astype("float32") @ product.astype("float32").t()
        loss = paddle.nn.functional.softmax(product).max(1).sum() + exact.mean()
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.minimize(optimizer, scaled)
    optimizer.clear_grad()

RESULT = [weight.numpy()]
