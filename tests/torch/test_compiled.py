"""The environment and the versions decide which compiled kernels are loaded.

Every other test shows what the kernels do: it runs with them and without.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from elsewhere import Ended, ended_fork
from unamp_torch import compiled
from unamp_torch.compiled import building

import unamp
from unamp import Policy, policy_region
from unamp.adapter import major_minor

#: The programs of these tests are told which kernels to take.
told = pytest.mark.either_kernels

REGION = """
import torch, unamp
with unamp.autocast("cpu", allow="add"):
    assert (torch.ones(2) + torch.ones(2)).dtype == torch.bfloat16
from unamp_torch import compiled
print(compiled.library)
"""


def run(program: str = REGION, /, **environment: str) -> Ended:
    return ended_fork("torch", program, **environment)


def test_this_run_is_what_it_says_it_is() -> None:
    assert (compiled.library is not None) is (
        compiled.place().exists() and os.environ.get("UNAMP_TORCH_COMPILED") != "0"
    )
    with policy_region(Policy(dtype="bfloat16", allow="exp")) as region:
        (realisation,) = region._prepared[1]
    assert type(realisation).__module__ == (
        "unamp_torch.activation" if compiled.library is None else "unamp_torch_kernels"
    )


@told
def test_where_nothing_is_built_everything_works_in_python(tmp_path: Path) -> None:
    done = run(XDG_CACHE_HOME=str(tmp_path), UNAMP_TORCH_COMPILED="")
    assert done.stdout.strip() == "None", done.stderr


@told
@pytest.mark.parametrize(
    ("wanted", "tools", "said"), [("", True, 1), ("0", True, 0), ("", False, 0)]
)
def test_the_first_region_says_once_how_to_build(
    wanted: str, tools: bool, said: int, tmp_path: Path
) -> None:
    for tool in ("c++", "ninja") if tools else ("c++",):
        (tmp_path / tool).touch(mode=0o755)
    done = run(
        REGION + REGION,
        XDG_CACHE_HOME=str(tmp_path),
        UNAMP_TORCH_COMPILED=wanted,
        CXX="c++",
        PATH=str(tmp_path),
    )
    assert done.stdout.split() == ["None", "None"], done.stderr
    assert (
        done.stderr.count("AmpHint: unamp's part of PyTorch's")
        == done.stderr.count("python -m unamp_torch builds")
        == said
    )


@told
def test_the_environment_can_insist(tmp_path: Path) -> None:
    done = run(XDG_CACHE_HOME=str(tmp_path), UNAMP_TORCH_COMPILED="1")
    assert f"kernels for torch {torch.__version__} are not built" in done.stderr
    assert "run: python -m unamp_torch" in done.stderr


def test_another_version_or_source_is_another_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = compiled.place()
    assert torch.__version__ in here.parent.name
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert compiled.place() != here
    monkeypatch.undo()
    shutil.copytree(building._SOURCES, tmp_path / "changed")
    with (tmp_path / "changed" / "kernels.h").open("a") as source:
        source.write("\n")
    monkeypatch.setattr(building, "_SOURCES", tmp_path / "changed")
    assert compiled.place() != here


@told
def test_a_damaged_module_is_an_error_and_no_crash(tmp_path: Path) -> None:
    damaged = tmp_path / compiled.place().relative_to(compiled.place().parents[2])
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"\x7fELF and nothing more")
    done = run(XDG_CACHE_HOME=str(tmp_path), UNAMP_TORCH_COMPILED="")
    assert done.code == 1
    assert "run python -m unamp_torch again" in done.stderr


#: As `unamp doctor` reports: the kernels' language, and the kernels that a wheel brought.
DOCTOR = """
import json, torch, unamp_torch
from unamp.adapter.registry import adapter_for
facts = adapter_for("torch").runtime()
from unamp_torch import compiled
print(json.dumps([facts["kernels"], facts.get("kernels_in_wheel"), getattr(compiled.library, "__file__", None)]))
"""  # noqa: E501

ANOTHER_TORCH = """
import torch
torch.__version__ = torch.version.__version__ = "2.99.0"
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a copy of the adapter, into which a test puts the kernels of a wheel.

    Nothing is built for the user.
    """
    package = Path(compiled.__file__).parents[1]
    shutil.copytree(
        package, tmp_path / "unamp_torch", ignore=shutil.ignore_patterns("torch-*", "__pycache__")
    )
    return tmp_path / "unamp_torch" / "compiled"


def with_installed(installed: Path, program: str, wanted: str = "") -> Ended:
    folder = str(installed.parents[1])
    program = f"import sys; sys.path.insert(0, {folder!r})\n{program}"
    return run(program, XDG_CACHE_HOME=folder, UNAMP_TORCH_COMPILED=wanted)


def doctor(installed: Path, before: str = "", wanted: str = "") -> list[str | None]:
    done = with_installed(installed, before + DOCTOR, wanted)
    assert done.code == 0, done.stderr
    found: list[str | None] = json.loads(done.stdout)
    return found


def bring(installed: Path, minor: str, content: bytes, file: str = compiled.place().name) -> Path:
    place = installed / f"torch-{minor}" / file
    place.parent.mkdir()
    place.write_bytes(content)
    return place


@told
def test_a_library_for_another_minor_version_of_torch_is_not_looked_at(installed: Path) -> None:
    bring(installed, "2.98", b"never read")
    bring(installed, "2.99", b"never read")
    assert doctor(installed) == ["Python", "for torch 2.98, torch 2.99", None]


@told
def test_a_library_for_another_python_is_not_looked_at(installed: Path) -> None:
    minor = "{}.{}".format(*major_minor(torch.__version__))
    bring(installed, minor, b"never read", "unamp_torch_kernels.cpython-39-x86_64-linux-gnu.so")
    assert doctor(installed) == ["Python", "none for this Python", None]


@told
def test_a_library_that_does_not_load_leaves_everything_to_python(installed: Path) -> None:
    minor = "{}.{}".format(*major_minor(torch.__version__))
    bring(installed, minor, b"\x7fELF and nothing more")
    kernels, brought, file = doctor(installed)
    assert (kernels, file) == ("Python", None)
    assert brought is not None
    assert brought.startswith("refused: ")
    assert "unamp_torch_kernels" in brought
    done = with_installed(installed, REGION, wanted="1")
    assert "the compiled kernels for torch" in done.stderr
    assert "cannot be loaded" in done.stderr


@pytest.mark.skipif(compiled.library is None, reason="this run is without the kernels")
def test_a_library_of_a_wheel_runs_with_the_torch_that_it_is_made_for_and_refuses_another(
    installed: Path,
) -> None:
    library = compiled.place().read_bytes()
    place = bring(installed, "{}.{}".format(*major_minor(torch.__version__)), library)
    kernels, brought, file = doctor(installed, wanted="1")
    assert (kernels, file) == ("C++", str(place))
    assert brought == f"for {place.parent.name.replace('-', ' ')}"
    bring(installed, "2.99", library)  # a library for one version under the name of another
    assert doctor(installed, ANOTHER_TORCH) == [
        "Python",
        (
            f"refused: it is made for torch {torch.__version__.partition('+')[0]}, "
            "and torch 2.99.0 is installed"
        ),
        None,
    ]


@pytest.mark.parametrize("version", ["2.14.0a0+git1234567", "2.14.0.dev20261101", "2.14.0rc1"])
def test_a_torch_between_releases_takes_nothing_of_a_wheel(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiled.place_in_wheel() is not None
    monkeypatch.setattr(torch, "__version__", version)
    assert compiled.place_in_wheel() is None


def test_the_stable_abi_of_libtorch_has_not_what_the_kernels_use() -> None:
    # If it had, one library could serve several minor versions: see `unamp_torch.compiled`.
    include = Path(torch.__file__).parent / "include"
    folders = [
        include / folder
        for folder in ("torch/csrc/stable", "torch/headeronly", "torch/csrc/inductor/aoti_torch/c")
    ]
    headers = [path for folder in folders for path in folder.rglob("*.h")]
    used = re.compile("autocast|dispatch_?key|redispatch", re.IGNORECASE)
    assert len(headers) > 10
    assert [path for path in headers if used.search(path.read_text("utf-8"))] == []
    assert used.search((include / "ATen/autocast_mode.h").read_text("utf-8"))


def test_casts_of_parameters_are_kept_until_the_outermost_region_closes() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))
    seen = []

    def saved(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor):
        with policy_region(Policy(dtype="bfloat16", allow="mul")):
            one, two = weight * weight, weight * weight
            with torch.no_grad():
                weight.add_(1)
            three = weight * weight
        with policy_region(Policy(dtype="bfloat16", allow="mul")):
            weight * weight
    low = [tensor.data_ptr() for tensor in seen if tensor.dtype == torch.bfloat16]
    kept = major_minor(torch.__version__) >= (2, 11)  # older versions keep no cast
    assert len(set(low[:4])) == (1 if kept else 4), "cast anew for the same parameter"
    assert set(low[4:6]).isdisjoint(low[:4]), "a parameter that has changed is cast anew"
    assert set(low[6:]).isdisjoint(low[4:6]), "a new region begins with nothing"
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


def test_a_region_entered_out_of_order_leaves_everything_as_it_was() -> None:
    region = unamp.autocast("cpu", allow="add")
    with pytest.raises(RuntimeError, match="not the innermost open region"):
        region.__exit__(None, None, None)
    assert not torch.is_autocast_enabled("cpu")
