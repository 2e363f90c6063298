"""Networks of `auto_mixed_precision` keep hooks, copy and pickle on PyTorch."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from decorated import made

import unamp

pytestmark = pytest.mark.beside_kernels


def test_hooks_and_copies() -> None:
    wrapped, x, seen = (
        unamp.auto_mixed_precision(made("conv"), "O2", "bfloat16").eval(),
        torch.randn(2, 16),
        [],
    )
    handle = wrapped.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    expected = wrapped(x)
    handle.remove()
    assert seen == [torch.float32]
    for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        torch.testing.assert_close(other(x), expected)
        assert other[1].weight is not wrapped[1].weight
