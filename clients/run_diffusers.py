"""diffusers: training steps of a small conditional U-Net on noise that its scheduler adds."""

import torch
from client import measure
from diffusers import DDPMScheduler, UNet2DConditionModel
from on_torch import native, step_of


def build(region):
    torch.manual_seed(0)
    net = UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
    )
    pictures, words, noise, steps = (
        torch.randn(4, 4, 16, 16),
        torch.randn(4, 8, 32),
        torch.randn(4, 4, 16, 16),
        torch.arange(4),
    )
    noisy = DDPMScheduler().add_noise(pictures, noise, steps)
    return step_of(
        net,
        region,
        lambda: torch.nn.functional.mse_loss(net(noisy, steps, words).sample.float(), noise),
    )


measure(build, lambda: build(native))
