"""A deprecated name works, warns for the line that uses it, and is gone in time."""

from __future__ import annotations

import ast
import linecache
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from documents import ROOT

import unamp.onnx
from unamp._deprecation import Deprecation, deprecated_names

SOURCES = sorted(
    path for room in ("unamp", "adapters", "conformance") for path in (ROOT / room).rglob("*.py")
)
DEPRECATION = Deprecation(since="1.1.0", until="2.0.0", instead="wanted")
SAID = "is deprecated since unamp 1.1.0 and will be gone in 2.0.0; use wanted"


def deprecations(source: str) -> list[Deprecation]:
    """Return the deprecations in a source; each of their arguments must be a literal text."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    made = [
        call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Deprecation"
    ]
    return [
        Deprecation(
            *(ast.literal_eval(each) for each in call.args),
            **{str(each.arg): ast.literal_eval(each.value) for each in call.keywords},
        )
        for call in made
    ]


def overdue(found: Deprecation, version: str) -> bool:
    """Return whether the deprecated name must be gone in a version."""
    return _numbers(version) >= _numbers(found.until)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@contextmanager
def seen_from_here() -> Iterator[list[tuple[str, str]]]:
    """Yield the list that the block's deprecation warnings go to, once it ends.

    Each is the text of the warning, and the line of this file that it points to.
    """
    found: list[tuple[str, str]] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield found
    assert {(each.category, each.filename) for each in seen} == {(DeprecationWarning, __file__)}
    found += [
        (str(each.message), linecache.getline(each.filename, each.lineno).strip()) for each in seen
    ]


@cache
def all_deprecations() -> list[tuple[Path, Deprecation]]:
    texts = {path: path.read_text("utf-8") for path in SOURCES}
    return [
        (path, found)
        for path, text in texts.items()
        if "Deprecation(" in text
        for found in deprecations(text)
    ]


def test_nothing_is_past_its_time() -> None:
    assert [
        (path, found) for path, found in all_deprecations() if overdue(found, unamp.__version__)
    ] == []


def test_there_is_a_major_release_between() -> None:
    assert [
        (path, found)
        for path, found in all_deprecations()
        if _numbers(found.since)[0] >= _numbers(found.until)[0]
    ] == []


def test_the_page_names_every_deprecation() -> None:
    page = (ROOT / "docs" / "public-api.md").read_text("utf-8")
    assert all_deprecations()
    for _, found in all_deprecations():
        assert f"| {found.since} | {found.until} | `{found.instead}`" in page


@pytest.mark.parametrize(
    ("version", "late"),
    [("0.1.0", False), ("1.1.0", False), ("1.10.0", False), ("2.0.0", True), ("10.0.0", True)],
)
def test_what_is_past_its_time_is_noticed(version: str, late: bool) -> None:
    source = 'OLD = {"f": Deprecation("1.1.0", until="2.0.0", instead="a")}\n'
    (found,) = deprecations(source)
    assert found == Deprecation("1.1.0", "2.0.0", "a")
    assert overdue(found, version) is late


def test_a_name_warns_where_it_is_taken() -> None:
    found = deprecated_names(
        "some.module", {"Dot": DEPRECATION._replace(instead="unamp.onnx.CheckedModel")}
    )
    with seen_from_here() as seen:
        assert found("Dot") is unamp.onnx.CheckedModel
    said = f"some.module.Dot {SAID.replace('wanted', 'unamp.onnx.CheckedModel')}"
    assert seen == [(said, 'assert found("Dot") is unamp.onnx.CheckedModel')]
    with pytest.raises(AttributeError, match=r"^module 'some.module' has no attribute 'Line'$"):
        found("Line")


def test_the_old_name_of_a_checked_model() -> None:
    with seen_from_here() as seen:
        assert unamp.onnx.Checked is unamp.onnx.CheckedModel
    with seen_from_here() as imported:
        from unamp.onnx import Checked
    assert Checked is unamp.onnx.CheckedModel
    said = (
        "unamp.onnx.Checked is deprecated since unamp 1.0.0 and will be gone in 2.0.0; "
        "use unamp.onnx.CheckedModel"
    )
    assert seen == [(said, "assert unamp.onnx.Checked is unamp.onnx.CheckedModel")]
    assert set(imported) == {(said, "from unamp.onnx import Checked")}


def test_an_old_name_is_not_handed_out_unasked() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names: dict[str, object] = {}
        exec("from unamp.onnx import *", names)
    assert "CheckedModel" in names
    assert "Checked" not in names
