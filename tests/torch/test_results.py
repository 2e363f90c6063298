"""`float32_results` on PyTorch widens the results of a function, eager and compiled."""

from __future__ import annotations

import functools

import pytest
import torch
from narrowed import test_float32_leaves_a_function_that_computes_low  # noqa: F401

pytestmark = pytest.mark.beside_kernels

WAYS = [lambda f: f, functools.partial(torch.compile, backend="aot_eager", fullgraph=True)]
