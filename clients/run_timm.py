"""timm: training steps of a vision transformer whose head follows a ConvNeXt's features."""

import torch
from client import measure
from on_torch import declare_operators_of_torchvision, native, step_of

declare_operators_of_torchvision()
import timm  # noqa: E402


def build(region):
    torch.manual_seed(0)
    names = ("vit_tiny_patch16_224", "convnext_atto")
    nets = torch.nn.ModuleList(
        timm.create_model(name, num_classes=10, img_size=64)
        if "vit" in name
        else timm.create_model(name, num_classes=10)
        for name in names
    )
    x, labels = torch.randn(8, 3, 64, 64), torch.arange(8)
    return step_of(
        nets, region, lambda: sum(torch.nn.functional.cross_entropy(net(x), labels) for net in nets)
    )


measure(build, lambda: build(native))
