"""Regions replace functions and methods for everybody who holds them, and restore them."""

from __future__ import annotations

import threading
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, ops
from mindspore._c_expression import TensorPy
from unamp_mindspore import listing, patches

from unamp import Policy, policy_region

F16, BF16, F32 = mindspore.float16, mindspore.bfloat16, mindspore.float32


def everything() -> list[Any]:
    """Return the code and the methods that regions replace, as they are now."""
    functions = [
        patch.function.__code__
        for patch in (*listing.codes().values(), *patches._hooks(), listing.primitive_call)
    ]
    return [*functions, *(vars(TensorPy)[name] for name in listing.methods())]


def numbers() -> Tensor:
    return Tensor(np.random.rand(4, 4).astype(np.float32))


def test_a_region_is_what_it_is_and_leaves_nothing() -> None:
    a, before = numbers(), everything()
    with policy_region(Policy(dtype="bfloat16", allow="add")):
        assert not any(new is old for new, old in zip(everything(), before, strict=True))
        assert [(a @ a).dtype, (a + a).dtype, ops.relu(a).dtype] == [BF16, BF16, F32]
    assert [(a @ a).dtype, (a + a).dtype] == [F32, F32]
    with pytest.raises(ZeroDivisionError), policy_region(Policy()):
        1 / 0  # noqa: B018 - it raises
    assert everything() == before


def test_other_threads_go_on_as_they_were() -> None:
    a, seen = numbers(), []
    with policy_region(Policy(allow="add")):
        other = threading.Thread(
            target=lambda: seen.extend([(a @ a).dtype, (a + a).dtype, ops.add(a, a).dtype])
        )
        other.start()
        other.join()
        assert (a + a).dtype == F16
    assert seen == [F32, F32, F32]


def test_what_somebody_puts_in_meanwhile_stays() -> None:
    function, before = next(iter(listing.codes().values())).function, everything()
    own, theirs = function.__code__, (lambda *args, **kwargs: "theirs").__code__
    method = vars(TensorPy)["__add__"]
    try:
        with policy_region(Policy()):
            function.__code__ = theirs.replace(co_freevars=own.co_freevars)
            Tensor.__add__ = TensorPy.__add__ = lambda self, other: "theirs"
            assert numbers() + 1 == "theirs"
        assert function.__code__ is not own
        assert numbers() + 1 == "theirs"
    finally:
        del Tensor.__add__
        TensorPy.__add__, function.__code__ = method, own
    assert everything() == before
