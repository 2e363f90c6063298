"""`BaseAdapter` answers for an adapter by default, and reads its file of gaps."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from unamp.adapter import Gap, Support
from unamp.adapter.base import BaseAdapter
from unamp.adapter.facts import read_gaps
from unamp.errors import AdapterError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of an adapter's package that can be imported."""
    folder = tmp_path / "adapter_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    sys.modules.pop(folder.name, None)


def test_gaps_are_read_in_their_order(package: Path) -> None:
    first = '[[declared]]\nwhat = "b"\nreason = "it is so"\nlink = "https://example.org"\n'
    text = f'{first}\n[[gap]]\ncheck = "probe"\n\n[[declared]]\nwhat = "a"\nreason = "so too"\n'
    (package / "gaps.toml").write_text(text, "utf-8")
    assert read_gaps(package.name) == (
        Gap("b", "it is so", "https://example.org"),
        Gap("a", "so too"),
    )


def test_without_a_file_nothing_is_declared(package: Path) -> None:
    assert read_gaps(package.name) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("declared = 1", "must hold tables"),
        ('[[declared]]\nwhat = "a"\nreason = "b"\n[other]\n', "it has declared, other"),
        ('[[declared]]\nwhat = "a"\n', "has strings what and reason"),
        (
            '[[declared]]\nwhat = "a"\nreason = "b"\ncheck = "probe"\n',
            "has strings what and reason",
        ),
        ('[[declared]]\nwhat = "a"\nreason = 3\n', "has strings what and reason"),
        ("declared = [1]", "has strings what and reason"),
    ],
)
def test_a_bad_file_of_gaps_is_named(package: Path, text: str, message: str) -> None:
    (package / "gaps.toml").write_text(text, "utf-8")
    with pytest.raises(AdapterError, match=rf"adapter_of_a_test/gaps\.toml.*{message}"):
        read_gaps(package.name)


class _OnTwoDevices(BaseAdapter):
    framework = "a_framework_of_a_test"

    def device_names(self) -> dict[str, str]:
        return {"meta": "meta", "gpu": "xpu", "cpu": "CPU"}

    def device_kind(self, device: object) -> str | None:
        return None


def test_what_the_framework_has_a_word_for_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = types.ModuleType("a_framework_of_a_test")
    framework.__version__ = "1.2+cpu"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, framework.__name__, framework)
    adapter = _OnTwoDevices(">=1")
    assert (adapter.version(), adapter.requires) == ("1.2+cpu", ">=1")
    assert adapter.devices() == ("cpu", "gpu")
    assert adapter.support("gpu", "float16") is Support.NATIVE  # type: ignore[misc]
    assert adapter.support("meta", "float16") is Support.UNSUPPORTED  # type: ignore[misc]
