"""The environment and the caches decide where compiled kernels are kept and found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from torch.utils import cpp_extension
from unamp_torch.compiled import building

from unamp import FrameworkNotSupported


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the kernels that a wheel would bring.

    Nothing is built. The environment has the tools to build, and asks for no kernels.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("UNAMP_TORCH_COMPILED", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "c++")
    for tool in ("c++", "ninja"):
        (tmp_path / tool).touch(mode=0o755)
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "module.cpp").write_text("int number;")
    monkeypatch.setattr(building, "_SOURCES", sources)
    monkeypatch.setattr(building, "_FILE", "somebodys_part.so")
    monkeypatch.setattr(building, "_refusal", None)
    monkeypatch.setattr(building, "library", None)
    in_wheel = building.place_in_wheel()
    assert in_wheel is not None
    return in_wheel


def damaged(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF and nothing more")
    return path


def could_be_built() -> bool:
    return building.build_hint(on_gpu=False) is not None


def test_what_is_built_is_kept_in_the_users_cache_and_nothing_beside_it(
    brought: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(name: str, sources: list[str], *, build_directory: str, **options: Any) -> None:
        assert sources == [str(tmp_path / "sources" / "module.cpp")]
        (Path(build_directory) / "build.ninja").touch()
        damaged(Path(build_directory) / f"{name}.so")

    monkeypatch.setattr(cpp_extension, "load", compiled)
    assert building.load() is None
    assert could_be_built()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not could_be_built()
    monkeypatch.setenv("CXX", "c++")
    built = building.build()
    assert built == building.place()
    assert built.is_relative_to(tmp_path / "cache")
    assert os.listdir(built.parent) == ["somebodys_part.so"]
    assert not could_be_built()
    assert building._built() == built


def test_another_source_is_another_place(brought: Path, tmp_path: Path) -> None:
    before = building.place()
    (tmp_path / "sources" / "module.cpp").write_text("int other;")
    assert building.place() != before


def test_what_a_wheel_brings_is_used_until_the_user_builds_another(brought: Path) -> None:
    damaged(brought)
    assert not could_be_built()
    assert building._built() == brought
    damaged(building.place())
    assert building._built() == building.place()


def test_the_environment_decides(brought: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNAMP_TORCH_COMPILED", "1")
    with pytest.raises(
        FrameworkNotSupported,
        match="the compiled kernels for torch .* are not built .* run: python -m unamp_torch",
    ):
        building.load()
    damaged(building.place())
    with pytest.raises(
        ImportError, match=r"run python -m unamp_torch again, or delete .*somebodys_part"
    ):
        building.load()
    monkeypatch.setenv("UNAMP_TORCH_COMPILED", "0")
    assert building.load() is None
    assert not could_be_built()


def test_what_a_wheel_brings_and_does_not_load_is_left_alone_unless_it_must_be_used(
    brought: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged(brought)
    monkeypatch.setenv("UNAMP_TORCH_COMPILED", "1")
    with pytest.raises(
        ImportError, match=r"run python -m unamp_torch again, or delete .*somebodys_part"
    ):
        building.load()
    monkeypatch.delenv("UNAMP_TORCH_COMPILED")
    assert building.load() is None
    assert "somebodys_part.so" in (building.in_wheel() or "")
    assert could_be_built()
