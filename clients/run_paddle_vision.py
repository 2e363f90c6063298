"""paddle.vision: training steps of a residual network and a MobileNet.

On a CPU Paddle's own auto_cast has no effect.
"""

import paddle
from client import measure
from on_paddle import step_of


def build(region):
    paddle.seed(0)
    models = [
        paddle.vision.models.resnet18(num_classes=10),
        paddle.vision.models.mobilenet_v2(num_classes=10, scale=0.5),
    ]
    net = paddle.nn.LayerList(models)
    for dropout in (layer for layer in net.sublayers() if isinstance(layer, paddle.nn.Dropout)):
        dropout.p = 0.0
    x, labels = paddle.randn([4, 3, 64, 64]), paddle.arange(4)
    return step_of(
        net,
        region,
        lambda: sum(paddle.nn.functional.cross_entropy(each(x), labels) for each in models),
    )


measure(build)
