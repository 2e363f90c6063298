"""The cost of `unamp.watch` on a step of a transformer's encoder, in PyTorch: `python -m benchmarks.watching`.

Steps without it, steps that it does not look at, and steps that it looks at take turns, so that whatever else the machine does
meets all three alike; the time is the processor's, of one thread.
"""

from __future__ import annotations

import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

import unamp

EVERY = 50  # the default of `unamp.watch`
ROUNDS = 15


def main() -> None:
    """Print the medians, and the share of a step that the monitor takes at its default rate."""
    torch.set_num_threads(1)
    for low in (False, True):
        plain, passed, sampled = (statistics.median(times) * 1e3 for times in measure(low))
        share = ((EVERY - 1) * (passed - plain) + (sampled - plain)) / EVERY / plain
        parameters = "bfloat16 parameters" if low else "float32 parameters, a bfloat16 region"
        print(
            f"{parameters}: a step {plain:.1f} ms; one that is not looked at {passed:.1f} ms; one that is {sampled:.1f} ms; "
            f"one of {EVERY}: {share:.2%}",
            flush=True,
        )


def measure(low: bool) -> tuple[list[float], list[float], list[float]]:
    """Return the times of steps without the monitor, of those that it lets pass, and of those that it looks at."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    network: Any = torch.nn.TransformerEncoder(layer, 4)
    network = network.bfloat16() if low else network
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    x = torch.randn(8, 128, 256, dtype=torch.bfloat16 if low else torch.float32)
    passing, looking = (unamp.watch(network, optimizer, every=every, dtype="bfloat16") for every in (10**9, 1))

    def step(around: AbstractContextManager[Any]) -> float:
        start = time.process_time()
        optimizer.zero_grad()
        with nullcontext() if low else unamp.autocast(dtype="bfloat16"):
            loss = network(x).square().mean()
        loss.backward()
        with around:
            optimizer.step()
        return time.process_time() - start

    step(passing.step())  # the first is looked at
    step(looking.step())
    times = [(step(nullcontext()), step(passing.step()), step(looking.step())) for _ in range(ROUNDS)]
    plain, passed, sampled = (list(each) for each in zip(*times, strict=True))
    return plain, passed, sampled


if __name__ == "__main__":
    main()
