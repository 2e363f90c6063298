"""Networks of PaddlePaddle: its own ResNet, and its own transformer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import paddle
from paddle import nn

from benchmarks.tuning.subject import Subject, images, words


class Classifier(nn.Layer):
    """Paddle's encoder between an embedding and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 64)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(64, 4, 256, activation="gelu"), 3
        )
        self.head = nn.Linear(64, 3)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def networks() -> Iterator[Subject]:
    """Yield usual networks."""
    paddle.seed(0)
    resnet = paddle.vision.models.resnet18(num_classes=10)
    pictures = lambda seed: paddle.to_tensor(images(seed, 4, 3, 32, 32))  # noqa: E731
    with paddle.no_grad():
        for seed in range(1000, 1005):
            resnet(pictures(seed))
    classifier = Classifier()
    for network, name, batch, batches in (
        (resnet, "ResNet-18 of paddle.vision", pictures, 7),
        (
            classifier,
            "TransformerEncoder, 3 layers",
            lambda seed: paddle.to_tensor(words(seed, 128, 4, 24)),
            15,
        ),
    ):
        network.eval()
        yield Subject(name, network, paddle.no_grad()(network.__call__), batch, batches=batches)
