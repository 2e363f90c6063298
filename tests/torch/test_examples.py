"""The examples of README.md and the guides that use PyTorch run as pasted."""

from pathlib import Path

import pytest
import torch
from documents import conventions, examples, test_example  # noqa: F401
from followed import added, passed, told
from unamp_torch.compiled import library

import unamp

pytestmark = pytest.mark.beside_kernels


def test_the_first_example_prints_its_trace_and_another_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = next(e for e in examples("torch") if e.file.name == "README.md")
    assert first.prints is not None
    assert "bfloat16" in first.prints
    monkeypatch.chdir(tmp_path)
    next(e for e in examples("torch") if "trace.to_html()" in e.code).run()
    assert (tmp_path / "trace.html").stat().st_size > 3000


def test_the_architecture_follows_an_add() -> None:
    assert added(torch.ones(4)) == (told("PyTorch") if library is None else [])


def test_the_architecture_follows_a_region() -> None:
    never_asked_for = {"dtype": "bfloat16", "allow": ["add", "log1p", "atan"]}
    made = passed(lambda: unamp.autocast(**never_asked_for))
    assert made == told("In the core: the region is made")
    opened = passed(unamp.autocast(**never_asked_for).__enter__)
    unamp.regions.close_down_to(0)
    assert set(told("In the core: the region opens")) <= set(opened)


def test_conventions() -> None:
    norm, told = torch.nn.BatchNorm2d(1), conventions("PyTorch")
    assert told["batch norm's momentum"] == str(norm.momentum)
    assert told["batch norm's epsilon"] == str(norm.eps)
    assert told["layer norm's epsilon"] == str(torch.nn.LayerNorm(1).eps)
    conv = torch.nn.Conv2d(2, 3, (4, 5))
    assert (told["convolution's kernel"], tuple(conv.weight.shape)) == (
        "out, in, row, column",
        (3, 2, 4, 5),
    )
    assert (told["linear layer's weight"], tuple(torch.nn.Linear(2, 3).weight.shape)) == (
        "out, in",
        (3, 2),
    )
    assert (told["convolution's padding"], conv.padding) == ("0", (0, 0))
    assert (told["convolution's bias"], conv.bias is None) == ("yes", False)
    assert (told["stride of average pooling"], torch.nn.AvgPool2d(4).stride) == (
        "the kernel's size",
        4,
    )
    assert (told["a network starts"], norm.training) == ("training", True)
    norm(x := torch.randn(2, 1, 2, 2))
    assert (told["which is the share of"], told["running variance of n numbers is divided by"]) == (
        "the new",
        "n - 1",
    )
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * x.var().reshape(1))
