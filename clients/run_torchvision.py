"""torchvision: training steps of a residual network and a Swin transformer."""

import torch
from client import measure
from on_torch import declare_operators_of_torchvision, native, step_of

declare_operators_of_torchvision()
from torchvision import models  # noqa: E402


def build(region):
    torch.manual_seed(0)
    nets = torch.nn.ModuleList([models.resnet18(num_classes=10), models.swin_t(num_classes=10)])
    x, labels = torch.randn(4, 3, 64, 64), torch.arange(4)
    return step_of(
        nets, region, lambda: sum(torch.nn.functional.cross_entropy(net(x), labels) for net in nets)
    )


measure(build, lambda: build(native))
