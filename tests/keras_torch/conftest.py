"""Fixtures of the tests of Keras on PyTorch; the backend is chosen before Keras is imported."""

import os
from collections.abc import Iterator

import pytest

os.environ["KERAS_BACKEND"] = "torch"
# Before inductor reads it: it would start other processes to compile in, each of which imports
# PyTorch.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


@pytest.fixture(autouse=True)
def _first_of_the_process() -> Iterator[None]:
    """Let each test compile the first region of the process.

    The first one makes unamp patch while dynamo traces.
    """
    yield
    import torch
    from unamp_torch import patches

    if patches._in_graphs.open:
        torch._dynamo.reset()
        patches._in_graphs.release()
