"""Networks of MindSpore, in PyNative mode: its own transformer, and a small ResNet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from benchmarks.tuning.subject import Subject, images, words


class Block(nn.Cell):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, outside, 3, stride), nn.BatchNorm2d(outside)
        self.conv2, self.bn2 = nn.Conv2d(outside, outside, 3), nn.BatchNorm2d(outside)
        self.down = nn.Conv2d(inside, outside, 1, stride) if stride > 1 else None

    def construct(self, x: Any) -> Any:
        y = self.bn2(self.conv2(ops.relu(self.bn1(self.conv1(x)))))
        return ops.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.blocks = nn.SequentialCell(
            Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1), Block(32, 64, 2)
        )
        self.fc = nn.Dense(64, 10)

    def construct(self, x: Any) -> Any:
        return self.fc(self.blocks(self.conv(x)).mean((2, 3)))


class Classifier(nn.Cell):
    """MindSpore's encoder between an embedding and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 64)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2
        )
        self.head = nn.Dense(64, 3)

    def construct(self, tokens: Any) -> Any:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def networks() -> Iterator[Subject]:
    """Yield usual networks."""
    ms.set_context(pynative_synchronize=True)
    ms.set_seed(0)
    for name, network, batch in (
        ("ResNet, 4 blocks", ResNet(), lambda seed: ms.Tensor(images(seed, 4, 3, 16, 16))),
        (
            "TransformerEncoder, 2 layers",
            Classifier(),
            lambda seed: ms.Tensor(words(seed, 128, 4, 16).astype("int32")),
        ),
    ):
        network.set_train(False)
        yield Subject(name, network, network, batch)
