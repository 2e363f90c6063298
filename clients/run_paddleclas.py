"""PaddleClas: training steps of a PP-LCNet and a MobileViT.

On a CPU Paddle's own auto_cast has no effect.
"""

import paddle
import paddleclas
from client import measure
from on_paddle import step_of


def build(region):
    paddle.seed(0)
    models = [paddleclas.PPLCNet_x0_25(class_num=10), paddleclas.MobileViT_XXS(class_num=10)]
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
