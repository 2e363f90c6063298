"""The cost of `unamp.watch` beside a step of a transformer's encoder, in PyTorch.

`python -m benchmarks.watching` prints it. The step and the monitor are timed apart, in the same
steps: the monitor in a step that it skips, and in a step that it samples. The time is the processor
time of one thread, so that other work on the machine counts less.
"""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext
from typing import Any

import torch

import unamp

EVERY = 50  # the default of `unamp.watch`
ROUNDS = 15


def main() -> None:
    """Print the medians, and the share of a step that the monitor takes at its default rate."""
    torch.set_num_threads(1)
    for low in (False, True):
        step, passed, looked = (
            statistics.median(times) for times in zip(*measure(low), strict=True)
        )
        share = ((EVERY - 1) * passed + looked) / EVERY / step
        parameters = "bfloat16 parameters" if low else "float32 parameters, a bfloat16 region"
        print(
            f"{parameters}: a step {step * 1e3:.0f} ms; the monitor {passed * 1e6:.0f} us where "
            f"it lets a step pass, {looked * 1e3:.1f} ms where it looks; at every={EVERY} that is "
            f"{share:.2%} of a step",
            flush=True,
        )


def measure(low: bool) -> list[tuple[float, float, float]]:
    """Return times of steps, and of the monitor in steps that it skips and that it samples."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    network: Any = torch.nn.TransformerEncoder(layer, 4)
    network = network.bfloat16() if low else network
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    x = torch.randn(8, 128, 256, dtype=torch.bfloat16 if low else torch.float32)
    passing, looking = (
        unamp.watch(network, optimizer, every=every, dtype="bfloat16") for every in (10**9, 1)
    )

    def step(watch: unamp.Watch | None) -> float:
        """Take a step; return its time without a monitor, or the monitor's time."""
        start = time.process_time()
        optimizer.zero_grad()
        with nullcontext() if low else unamp.autocast(dtype="bfloat16"):
            loss = network(x).square().mean()
        loss.backward()
        if watch is None:
            optimizer.step()
            return time.process_time() - start
        before = time.process_time()
        with watch.step():
            begun = time.process_time()
            optimizer.step()
            over = time.process_time()
        return time.process_time() - over + begun - before

    step(passing)  # a monitor samples the first step
    step(looking)
    return [(step(None), step(passing), step(looking)) for _ in range(ROUNDS)]


if __name__ == "__main__":
    main()
