"""Networks of PyTorch: usual ones (ResNet for CIFAR, BERT, GPT, U-Net), and small faulty ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tuning.subject import Subject, images, words

WORDS, WIDTH = 128, 64


class BasicBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.conv2, self.bn2 = (
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A ResNet of 20 layers, for images of 32x32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        widths = [
            (16, 16, 1),
            (16, 16, 1),
            (16, 16, 1),
            (16, 32, 2),
            (32, 32, 1),
            (32, 32, 1),
            (32, 64, 2),
            (64, 64, 1),
            (64, 64, 1),
        ]
        self.blocks = nn.Sequential(*(BasicBlock(*each) for each in widths))
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.fc(y.mean((2, 3)))


class SelfAttention(nn.Module):
    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.heads = heads

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        return self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = (
            SelfAttention(),
            nn.LayerNorm(WIDTH),
            nn.LayerNorm(WIDTH),
        )
        self.intermediate, self.output = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.output(F.gelu(self.intermediate(x))))


class Bert(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(32, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(BertLayer() for _ in range(layers))
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = torch.where(tokens == 0, -1e4, 0.0)[:, None, None]
        x = self.norm(self.words(tokens) + self.positions.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x, mask)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class GptBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), SelfAttention(), nn.LayerNorm(WIDTH)
        self.c_fc, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(32, WIDTH)
        self.h = nn.ModuleList(GptBlock() for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = torch.full((length, length), -torch.inf).triu(1)
        x = self.wte(tokens) + self.wpe.weight[:length]
        for block in self.h:
            x = block(x, mask)
        return self.lm_head(self.ln_f(x))


class DoubleConv(nn.Sequential):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(
            nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.SiLU(),
            nn.Conv2d(outside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.SiLU(),
        )  # fmt: skip


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = (
            DoubleConv(3, 16),
            DoubleConv(16, 32),
            DoubleConv(32, 64),
        )
        self.up2, self.merge2 = nn.ConvTranspose2d(64, 32, 2, 2), DoubleConv(64, 32)
        self.up1, self.merge1 = nn.ConvTranspose2d(32, 16, 2, 2), DoubleConv(32, 16)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        c = self.merge2(torch.cat([self.up2(c), b], 1))
        return self.head(self.merge1(torch.cat([self.up1(c), a], 1)))


class ResidualBlock(nn.Module):
    """A block that adds a little to its input; the network has many of them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wi, self.wo = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(2 * WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.wo(F.relu(self.wi(self.norm(x))))


class ByHand(nn.Module):
    """A softmax that does not subtract the maximum."""

    def forward(self, x: Tensor) -> Tensor:
        e = torch.exp(x + 12)
        return e / e.sum(-1, keepdim=True)


def _overflowing(linears: int, extra: bool = False) -> nn.Module:
    """Return a network with an overflowing product before a norm: 6 places, or more layers."""
    parts: list[nn.Module] = [
        nn.Linear(32, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.LayerNorm(WIDTH),
    ]
    for _ in range(linears):
        parts += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    with torch.no_grad():
        parts[2].weight.mul_(1e6)  # type: ignore[operator, union-attr]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 10), *([nn.Softmax(-1)] if extra else []))


def _trained(
    network: nn.Module, batches: Iterable[Tensor], loss: Callable[[Tensor, Tensor], Tensor]
) -> nn.Module:
    """Train a network for a few steps, so that its weights are not the initial ones."""
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    for batch in batches:
        optimizer.zero_grad()
        loss(network(batch), batch).backward()
        optimizer.step()
    return network.eval()


def _next_word(result: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(result[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _rows(seed: int) -> Tensor:
    return torch.from_numpy(images(seed, 8, 32))


def _pictures(seed: int) -> Tensor:
    return torch.from_numpy(images(seed, 4, 3, 16, 16))


def _tokens(seed: int) -> Tensor:
    return torch.from_numpy(words(seed, WORDS, 4, 24))


def _subject(
    name: str, network: nn.Module, batch: Callable[[int], Tensor], **tolerance: float
) -> Subject:
    network.eval()
    return Subject(name, network, torch.no_grad()(network.__call__), batch, tolerance)


def small() -> Iterator[Subject]:
    """Yield networks that are small enough to run all subsets."""
    torch.manual_seed(0)
    yield _subject(
        "a product that overflows (6)", _overflowing(1), _rows, float16=1e-2, bfloat16=2e-3
    )
    yield _subject(
        "a softmax by hand (9)",
        nn.Sequential(
            _overflowing(1)[0],
            nn.Tanh(),
            nn.Linear(WIDTH, 16),
            ByHand(),
            nn.Linear(16, 16),
            nn.Tanh(),
        ),
        _rows,
        float16=1e-2,
        bfloat16=2e-3,
    )  # type: ignore[index]
    yield _subject(
        "both (11)",
        nn.Sequential(*_overflowing(0), nn.Tanh(), ByHand(), nn.Linear(10, 4)),
        _rows,
        float16=1e-2,
        bfloat16=2e-3,
    )


def facts() -> Iterator[Subject]:
    """Yield networks like those of the first comparison of searches."""
    yield from itertools.islice(small(), 2)
    torch.manual_seed(0)
    blocks = nn.Sequential(
        nn.Linear(32, WIDTH), *(ResidualBlock() for _ in range(12)), nn.Linear(WIDTH, 10)
    )
    yield _subject("12 residual blocks", blocks, _rows)
    gpt = _trained(Gpt(2), map(_tokens, range(1000, 1050)), _next_word)
    yield _subject("a small GPT, trained", gpt, _tokens)


def networks() -> Iterator[Subject]:
    """Yield usual networks."""
    torch.manual_seed(0)
    resnet = ResNet()
    for seed in range(1000, 1010):
        resnet(_pictures(seed))  # its norms learn running statistics
    yield _subject("ResNet-20", resnet, _pictures)
    yield _subject("BERT, 4 layers", Bert(), _tokens)
    yield _subject(
        "GPT, 4 layers, trained",
        _trained(Gpt(), map(_tokens, range(1000, 1050)), _next_word),
        _tokens,
    )
    yield _subject("U-Net", UNet(), _pictures)
