"""torch_geometric: training steps of graph convolutions and graph attention on a random graph."""

import torch
from client import measure
from on_torch import native, step_of
from torch_geometric.nn import GAT, GCN


def build(region):
    torch.manual_seed(0)
    nets = torch.nn.ModuleList([GCN(64, 64, 3, 8), GAT(64, 64, 3, 8, heads=4)])
    x, edges, labels = (
        torch.randn(200, 64),
        torch.randint(0, 200, (2, 1000)),
        torch.randint(0, 8, (200,)),
    )
    return step_of(
        nets,
        region,
        lambda: sum(torch.nn.functional.cross_entropy(net(x, edges), labels) for net in nets),
    )


measure(build, lambda: build(native))
