"""Level O2 spelled in small letters, with promotion and without, in float16."""

import paddle
import paddle.amp as amp

paddle.seed(2)
model = paddle.nn.Sequential(
    paddle.nn.Linear(6, 12), paddle.nn.LayerNorm(12), paddle.nn.GELU(), paddle.nn.Linear(12, 2)
)
model = amp.decorate(model, level="O1")
optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())
x, y = paddle.randn([16, 6]), paddle.randn([16, 2])

for promote in (True, False):
    with amp.auto_cast(level="o2", use_promote=promote):
        out = model(x)
        loss = (out - y.astype(out.dtype)).square().mean()
    loss.astype("float32").backward()
    optimizer.step()
    optimizer.clear_grad()
with amp.auto_cast(level="O2"):
    last = model(x)

RESULT = [p.numpy() for p in model.parameters()] + [last.astype("float32").numpy()]
