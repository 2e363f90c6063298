"""Regions that exchange functions in C, and in Python: the same to everybody, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, ops
from mindspore._c_expression import TensorPy
from unamp_mindspore import compiled, listing, patches

from unamp import Policy, policy_region
from unamp.adapter import exchanging
from unamp.adapter.patching import Patches
from unamp.adapter.replacing import PatchGroup

F16, BF16, F32 = mindspore.float16, mindspore.bfloat16, mindspore.float32
CAN_BUILD = shutil.which("cc") is not None and Path(sysconfig.get_path("include"), "Python.h").exists()


@pytest.fixture(params=["Python"] + ["C"] * CAN_BUILD)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Regions exchange in this way, whichever one this process found."""
    exchange = None
    if request.param == "C":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.delenv("UNAMP_MINDSPORE_COMPILED", raising=False)
        compiled.build()
        exchange = exchanging.part("mindspore").module()
        assert exchange is not None
    (group,) = patches._everything()
    applied = Patches(lambda: (PatchGroup(group.patches, exchange),))
    for name in ("acquire", "release"):
        monkeypatch.setattr(patches, name, getattr(applied, name))
    monkeypatch.setattr(patches, "installed", applied)
    return str(request.param)


def everything() -> list[Any]:
    """Everything that regions exchange, as it is now."""
    functions = [patch.function.__code__ for patch in (*listing.codes().values(), *patches._hooks(), listing.primitive_call)]
    return [*functions, *(vars(TensorPy)[name] for name in listing.methods())]


def numbers() -> Tensor:
    return Tensor(np.random.rand(4, 4).astype(np.float32))


def test_a_region_is_what_it_is_and_leaves_nothing(way: str) -> None:
    a, before = numbers(), everything()
    with policy_region(Policy(dtype="bfloat16", allow="add")):
        assert not any(new is old for new, old in zip(everything(), before, strict=True))
        assert [(a @ a).dtype, (a + a).dtype, ops.relu(a).dtype] == [BF16, BF16, F32]
    assert [(a @ a).dtype, (a + a).dtype] == [F32, F32]
    with pytest.raises(ZeroDivisionError), policy_region(Policy()):
        1 / 0  # noqa: B018 - it raises
    assert everything() == before


def test_other_threads_go_on_as_they_were(way: str) -> None:
    a, seen = numbers(), []
    with policy_region(Policy(allow="add")):
        other = threading.Thread(target=lambda: seen.extend([(a @ a).dtype, (a + a).dtype, ops.add(a, a).dtype]))
        other.start()
        other.join()
        assert (a + a).dtype == F16
    assert seen == [F32, F32, F32]


def test_what_somebody_puts_in_meanwhile_stays(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_nothing_is_built_and_everything_works(tmp_path: Path) -> None:
    source = """
import warnings
warnings.simplefilter("ignore")
import mindspore, numpy as np, unamp
try:
    mindspore.ops.zeros((1,))  # MindSpore's first call with numbers, where it is compiled with another NumPy
except SystemError:
    pass
warnings.simplefilter("always", unamp.AmpHint)
from unamp_mindspore import compiled
a = mindspore.Tensor(np.ones((2, 2), np.float32))
for _ in range(2):
    with unamp.autocast(dtype="bfloat16"):
        print((a @ a).dtype, compiled.exchange)
print(a.dtype, (a @ a).dtype)
"""
    (tmp_path / "cc").touch(mode=0o755)
    environment = {"XDG_CACHE_HOME": str(tmp_path), "CC": str(tmp_path / "cc"), "UNAMP_MINDSPORE_COMPILED": ""}
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False, env=os.environ | environment
    )
    assert done.stdout.split("\n")[-4:-1] == ["BFloat16 None", "BFloat16 None", "Float32 Float32"], done.stderr
    has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    assert done.stderr.count("python -m unamp_mindspore builds that") == has_headers
