"""Where the compiled kernels are kept and found, and what the environment decides about them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from unamp_torch.compiled.part import CompiledPart

from unamp import FrameworkNotSupported


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompiledPart:
    """A part of which nothing is built, in an environment that asks for nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("UNAMP_TORCH_COMPILED", raising=False)
    source = tmp_path / "part.c"
    source.write_text("int number;")
    in_wheel = tmp_path / "somebodys_part.so"
    return CompiledPart("somebodys_part.so", "this", (source,), in_wheel)


def damaged(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF and nothing more")
    return path


def test_what_is_built_is_kept_in_the_users_cache_and_nothing_beside_it(part: CompiledPart, tmp_path: Path) -> None:
    assert part.module() is None
    assert part.would_be_used()
    assert not part.would_be_used("no-such-compiler")
    built = part.keep(lambda folder: damaged(folder / "anything.so"))
    assert built == part.place()
    assert built.is_relative_to(tmp_path / "cache")
    assert os.listdir(built.parent) == ["somebodys_part.so"]
    assert not part.would_be_used()
    assert part.to_load() == built


def test_another_source_is_another_place(part: CompiledPart) -> None:
    before = part.place()
    part.sources[0].write_text("int other;")
    assert part.place() != before


def test_what_a_wheel_brings_is_used_until_the_user_builds_another(part: CompiledPart) -> None:
    assert part.in_wheel is not None
    damaged(part.in_wheel)
    assert not part.would_be_used()
    assert part.to_load() == part.in_wheel
    damaged(part.place())
    assert part.to_load() == part.place()


def test_the_environment_decides(part: CompiledPart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNAMP_TORCH_COMPILED", "1")
    with pytest.raises(
        FrameworkNotSupported, match="the compiled kernels for torch .* are not built .* run: python -m unamp_torch"
    ):
        part.module()
    damaged(part.place())
    with pytest.raises(ImportError, match=r"run python -m unamp_torch again, or delete .*somebodys_part"):
        part.module()
    monkeypatch.setenv("UNAMP_TORCH_COMPILED", "0")
    assert part.module() is None
    assert not part.would_be_used()


def test_what_a_wheel_brings_and_does_not_load_is_left_alone_unless_it_must_be_used(
    part: CompiledPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert part.in_wheel is not None
    damaged(part.in_wheel)
    monkeypatch.setenv("UNAMP_TORCH_COMPILED", "1")
    with pytest.raises(ImportError, match=r"run python -m unamp_torch again, or delete .*somebodys_part"):
        part.module()
    monkeypatch.delenv("UNAMP_TORCH_COMPILED")
    assert part.module() is None
    assert part.refusal is not None
    assert "somebodys_part.so" in part.refusal
    assert part.would_be_used()
