"""Regions cover devices other than the CPU and CUDA.

These are meta tensors, fake tensors, and a second device that stores its numbers on the CPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import absent
import no_gpu
import pytest
import torch
from elsewhere import forked, python
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from unamp_torch.compiled import library

import unamp
from unamp import Policy
from unamp.errors import NotExpressible

HERE = Path(__file__).parent
GPU = torch.cuda.is_available()
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


#: Compiled kernels do not know this device: its regions run in Python, on the CPU as well.
SECOND = pytest.param("second", marks=pytest.mark.beside_kernels)


@pytest.mark.parametrize("device", ["meta", SECOND])
def test_every_operation_answers_as_on_the_cpu(device: str) -> None:
    """Compare in a process of its own, which sees no GPU.

    PyTorch's second device cannot be unregistered, and a GPU would be the accelerator instead.
    """
    said = forked("torch", (HERE / "devices.py").read_text("utf-8"), device, **no_gpu.ENVIRONMENT)
    assert json.loads(said.splitlines()[-1]) == []


@pytest.mark.either_kernels
def test_the_second_device_computes_a_whole_operator_as_its_parts() -> None:
    script = """
import torch
from unamp_torch.conformance.second_device import put, register

register()
torch.manual_seed(0)
shapes = (5, 3, 4), (1, 3, 6), (1, 3, 6), (24, 4), (24, 6), (24,), (24,)
x, h, c, *weights = (put(torch.randn(shape)) for shape in shapes)
found = []
for mode in torch.enable_grad, torch.inference_mode:
    with mode():
        found.append(torch.lstm(x, (h, c), weights, True, 1, 0.0, False, False, False)[0].stored)
assert torch.equal(*found)
"""
    forked("torch", script, **no_gpu.ENVIRONMENT)


@pytest.mark.either_kernels
@pytest.mark.parametrize("compiled", ["0", ""])
def test_regions_around_several_devices(compiled: str) -> None:
    """Run the script with kernels in Python, and with those in C++ where they are built."""
    script = (HERE / "two_devices.py").read_text("utf-8")
    forked("torch", script, **no_gpu.ENVIRONMENT, UNAMP_TORCH_COMPILED=compiled)


def test_where_there_is_a_gpu_devices_that_are_not_here_are_read_in_a_process_that_sees_none() -> (
    None
):
    assert bool(no_gpu.FILES) is GPU
    for name in no_gpu.FILES:
        python("-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / name, **no_gpu.ENVIRONMENT)


@pytest.mark.parametrize("named", [None, "meta", torch.device("meta")])
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "OD"])
def test_training_on_meta_tensors(named: Any, level: str) -> None:
    def train(device: str) -> list[torch.dtype]:
        network = torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 3)
        ).to(device)
        with unamp.autocast(named if device == "meta" else None, "bfloat16", level=level):
            out = network(torch.ones(2, 4, device=device))
            loss = F.cross_entropy(out, torch.zeros(2, dtype=torch.long, device=device))
            also = [
                (out + 1.5).dtype,
                (2 * out).dtype,
                out.exp().dtype,
                torch.cat([out, out.float()]).dtype,
            ]
        loss.backward()
        return [
            out.dtype,
            loss.dtype,
            *also,
            *(p.grad.dtype for p in network.parameters() if p.grad is not None),
        ]

    assert train("meta") == train("cpu")


def test_meta_tensors_outside_of_regions_are_as_they_were() -> None:
    with unamp.autocast(dtype="bfloat16"):
        pass
    x = torch.ones(2, 2, device="meta", requires_grad=True)
    y = (x @ x + 2 * x).exp()
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, y.requires_grad) == (F32, F32, True)
    assert torch.func.grad(lambda a: (a @ a).sum())(x).dtype == F32
    with torch.inference_mode():
        assert (x @ x).dtype == F32


def test_a_trace_on_meta_tells_decisions() -> None:
    def decisions(device: str) -> list[Any]:
        network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(-1)).to(device)
        with unamp.trace() as trace, unamp.autocast(dtype="float16"):
            network(torch.ones(2, 4, device=device))
        return [(r.op, r.inputs, r.compute, r.output, r.layer) for r in trace.records]

    assert decisions("meta") == decisions("cpu")


def test_a_region_for_one_device_leaves_the_others() -> None:
    here, nowhere = torch.ones(2, 2), torch.ones(2, 2, device="meta")
    with unamp.autocast("meta", "float16"):
        assert ((here @ here).dtype, (nowhere @ nowhere).dtype) == (F32, F16)
        with unamp.autocast("cpu", "bfloat16"):
            assert ((here @ here).dtype, (nowhere @ nowhere).dtype) == (BF16, F16)
            moved = (here @ here).to("meta")  # a copy between devices keeps its dtype
            assert (moved.dtype, (moved @ nowhere).dtype) == (BF16, F16)
    with unamp.autocast(dtype="float16"), unamp.autocast("cpu", enabled=False):
        assert ((here @ here).dtype, (nowhere @ nowhere).dtype) == (F32, F16)
    with unamp.autocast("cpu", "bfloat16"):
        assert ((here @ here).dtype, (nowhere @ nowhere).dtype) == (BF16, F32)


def test_inference_mode_in_a_region_that_names_the_device() -> None:
    x = torch.ones(2, 2, device="meta")
    with torch.inference_mode(), unamp.autocast("meta", "float16"):
        assert (x @ x).dtype == F16


def test_inference_mode_in_a_region_that_names_none_is_refused() -> None:
    x, here = torch.ones(2, 2, device="meta"), torch.ones(2, 2)
    with torch.inference_mode(), unamp.autocast(dtype="bfloat16"):
        assert F.softmax(here @ here, -1).dtype == F32
        with pytest.raises(
            NotExpressible,
            match=r"""does not reach meta tensors: open it with unamp.autocast\("meta"\)""",
        ):
            F.softmax(x, -1)
        with unamp.autocast("cpu", "float16"):
            if GPU:
                # the kernels see tensors of every device that the inner region leaves out
                assert ((x @ x).dtype, F.softmax(x @ x, -1).dtype, (here @ here).dtype) == (
                    BF16,
                    F32,
                    F16,
                )
            else:
                with pytest.raises(NotExpressible):
                    F.softmax(x, -1)
    with torch.inference_mode(), unamp.autocast("cpu", "bfloat16"):  # leaves the kernels alone
        assert F.softmax(x.bfloat16(), -1).dtype == BF16
    assert unamp.current_policy() is None


def test_where_kernels_are_compiled_meta_tensors_meet_no_python_outside_of_regions() -> None:
    with unamp.autocast(dtype="bfloat16"):
        assert (torch.ones(2, 2, device="meta") @ torch.ones(2, 2, device="meta")).dtype == BF16
    for name in ("aten::mm", "aten::linear", "aten::exp"):
        (line,) = (
            line
            for line in torch._C._dispatch_dump(name).splitlines()
            if line.startswith("AutogradMeta: ")
        )
        assert ("module.cpp" in line) is (library is not None)


def test_fake_tensors_answer_as_real_ones() -> None:
    with FakeTensorMode(), unamp.autocast(dtype="bfloat16"):
        for device in ("cpu", "meta"):
            x = torch.ones(2, 2, device=device)
            assert ((x @ x).dtype, (x @ x).exp().dtype, F.softmax(x @ x, -1).dtype) == (
                BF16,
                F32,
                F32,
            )


@pytest.mark.parametrize(
    "named", ["cuda:1", "gpu:0", torch.device("cuda"), torch.device("cpu"), "cpu:0"]
)
def test_a_device_may_have_an_index_or_be_pytorchs_object(named: Any) -> None:
    kind = "cpu" if "cpu" in str(named) else "gpu"
    assert unamp.autocast(named).device == kind
    assert unamp.autocast(named).framework is None


CUDA_WORDS = ["cuda", "gpu", torch.device("cuda:1")]


@pytest.mark.parametrize(
    "named", ["mps", torch.device("xpu"), *([] if GPU else CUDA_WORDS)], ids=str
)
def test_devices_that_are_not_there(named: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, has = torch.ones(2, 2), "torch has cpu, cuda, meta" if GPU else "torch has cpu, meta"
    absent.nothing_is_in_force_on_it(named, has, lambda: (x @ x).dtype, BF16, monkeypatch)
    with unamp.autocast(named):
        assert not torch.is_autocast_enabled(str(named).partition(":")[0].replace("gpu", "cuda"))


@pytest.mark.parametrize("named", CUDA_WORDS, ids=str)
def test_a_region_for_cuda_is_in_force_where_there_is_a_gpu_and_leaves_the_cpu(named: Any) -> None:
    x = torch.ones(2, 2)
    with unamp.autocast(named):
        assert torch.is_autocast_enabled("cuda") is unamp.is_autocast_enabled() is GPU
        assert unamp.get_autocast_dtype() == ("float16" if GPU else None)
        assert (x @ x).dtype == F32
        if GPU:
            assert (x.cuda() @ x.cuda()).dtype == F16


@pytest.mark.parametrize(
    ("named", "error", "said"),
    [
        ("tpu", ValueError, "unknown device_type 'tpu'.*torch has cpu"),
        ("gpu:x", ValueError, "unknown device_type"),
        (3, TypeError, "must be a string.*or None, not int; valid.*torch has cpu"),
    ],
)
def test_words_for_no_device(named: Any, error: type[Exception], said: str) -> None:
    absent.a_word_for_no_device_is_refused(named, said, error)


def test_pytorchs_own_amp_does_nothing_on_meta() -> None:
    with (
        pytest.raises(NotExpressible, match="does nothing on 'meta'"),
        unamp.autocast("meta", preset="native"),
    ):
        pass
    assert unamp.current_policy() is None


def test_a_policy_of_no_low_operation_leaves_meta_tensors_alone() -> None:
    x = torch.ones(2, 2, device="meta")
    with unamp.policy_region(Policy("O1", deny="*")):
        assert (x @ x).dtype == F32
        assert (x.bfloat16() @ x.bfloat16()).dtype == F32
