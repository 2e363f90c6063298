"""`unamp migrate` follows names through a project's own modules to the framework."""

from __future__ import annotations

from pathlib import Path

import pytest

from unamp.migrate import Kind, Report, Target, migrate_paths

STEP = (
    "from .compat import {}\n\n\ndef step(model, x):\n    with {}('cuda'):\n"
    "        return model(x)\n"
)
MOVED = "with unamp.autocast('cuda', preset=\"torch-cuda\"):"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package with a module in another folder."""
    (tmp_path / "mine/nets").mkdir(parents=True)
    (tmp_path / "mine/__init__.py").write_text("")
    (tmp_path / "mine/nets/__init__.py").write_text("")
    return tmp_path / "mine"


def migrated(
    package: Path, compat: str, step: str, target: Target = Target.UNAMP
) -> tuple[str, Report]:
    (package / "compat.py").write_text(compat)
    path = package / "step.py"
    path.write_text(step)
    report = migrate_paths([path], target, write=True)
    assert not report.errors
    return path.read_text(), report


@pytest.mark.parametrize(
    "compat",
    [
        "from torch import autocast",
        "from torch.amp import autocast",
        "import torch\nautocast = torch.autocast",
        "from .nets import autocast",
        "if True:\n    from torch import autocast",
    ],
)
def test_a_function_is_followed(package: Path, compat: str) -> None:
    (package / "nets/__init__.py").write_text("from torch.amp import autocast\n")
    text, _ = migrated(package, compat, STEP.format("autocast", "autocast"))
    assert MOVED in text
    assert "compat" not in text
    dialect, _ = migrated(package, compat, STEP.format("autocast", "autocast"), Target.DIALECTS)
    assert dialect.startswith("from unamp.dialects.torch")


def test_modules_that_lead_to_each_other_are_followed_once(package: Path) -> None:
    for n in range(30):
        (package / f"m{n}.py").write_text(
            "".join(f"from .m{other} import autocast\n" for other in range(30))
        )
    text, _ = migrated(package, "from .m0 import autocast\n", STEP.format("autocast", "autocast"))
    assert text == STEP.format("autocast", "autocast")


@pytest.mark.parametrize(
    "step",
    [
        STEP.format("amp", "amp.autocast"),
        STEP.format("torch", "torch.autocast")
        .replace(".compat", "..mine.compat")
        .replace("..mine", "mine"),
        STEP.format("x", "compat.amp.autocast").replace(
            "from .compat import x", "from . import compat"
        ),
        STEP.format("x", "c.amp.autocast").replace(
            "from .compat import x", "import mine.compat as c"
        ),
    ],
)
def test_a_module_is_followed(package: Path, step: str) -> None:
    text, _ = migrated(package, "import torch\nfrom torch import amp\n", step)
    assert MOVED in text


def test_a_name_that_is_bound_in_several_ways_is_reported(package: Path) -> None:
    compat = (
        "try:\n    from torch.amp import autocast\nexcept ImportError:\n"
        "    from torch.cuda.amp import autocast\n"
    )
    text, report = migrated(package, compat, STEP.format("autocast", "autocast"))
    assert text == STEP.format("autocast", "autocast")
    assert [(f.kind, f.hand) for _, f in report.findings] == [
        (Kind.BY_HAND, "migrate that module --to dialects")
    ]


@pytest.mark.parametrize(
    "compat",
    [
        "def autocast(device): ...",
        "from .step import autocast",
        "from .compat import autocast",
        "from ...... import autocast",
        "(",
        "\0",
        "autocast = autocast",
        "def f():\n    from torch import autocast",
    ],
)
def test_what_is_no_framework_s_stays(package: Path, compat: str) -> None:
    before = STEP.format("autocast", "autocast")
    text, report = migrated(package, compat, before)
    assert text == before
    assert not report.findings


def test_a_framework_that_a_module_loads_as_it_runs_is_taken_for_itself(package: Path) -> None:
    compat = "import importlib\nglobals()['torch'] = importlib.import_module('torch')\n"
    text, report = migrated(package, compat, STEP.format("torch", "torch.autocast"))
    assert MOVED in text
    assert "from .compat import torch" in text
    assert [f.why for _, f in report.findings if f.kind is Kind.NOTE] == [
        "torch is taken for torch itself"
    ]


def test_a_script_beside_a_module(tmp_path: Path) -> None:
    (tmp_path / "compat.py").write_text("from torch import autocast\n")
    (tmp_path / "train.py").write_text(
        STEP.format("autocast", "autocast").replace(".compat", "compat")
    )
    migrate_paths([tmp_path / "train.py"], write=True)
    assert MOVED in (tmp_path / "train.py").read_text()
