"""PaddleSeg: training steps of a small segmentation network."""

import paddle
from client import measure
from on_paddle import step_of
from paddleseg.models import UNet


def build(region):
    paddle.seed(0)
    net = UNet(num_classes=4)
    x, labels = paddle.randn([1, 3, 32, 32]), paddle.randint(0, 4, [1, 32, 32])
    return step_of(net, region, lambda: paddle.nn.functional.cross_entropy(net(x)[0].transpose([0, 2, 3, 1]), labels))


measure(build)
