"""Public names are those of the last release, except for the changes in CHANGELOG.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import public_api
from public_api import (
    Change,
    broken_since,
    changes,
    current,
    named_changes,
    names,
    newest_tag,
    unnamed,
)

NAMED = named_changes((ROOT / "CHANGELOG.md").read_text("utf-8"), "Unreleased")

TINY = """
from typing import NamedTuple

__all__ = ["Point", "scaled", "shifted"]

class Point(NamedTuple):
    x: float
    y: float = 0.0

    def length(self, *, power: int = 2) -> float: ...
    def _inner(self): ...

def scaled(point: Point, by: float = 2.0, /, *rest: float, exact: bool = False) -> Point: ...
def shifted(point, x, y): ...
def private(): ...
"""


def made(home: Path, source: str = TINY) -> str:
    """Write a package, and return its public names, one on each line."""
    (home / "tiny").mkdir(exist_ok=True)
    (home / "tiny" / "__init__.py").write_text(source, "utf-8")
    return "\n".join(names(home, ["tiny"]))


def test_every_change_since_the_last_release_is_in_the_changelog() -> None:
    assert unnamed(changes(public_api.NAMES.read_text("utf-8"), current()), NAMED) == []


def test_what_breaks_code_for_the_last_tag_is_in_the_changelog() -> None:
    if tag := newest_tag(ROOT):
        for folder, modules in public_api.PUBLIC.items():
            assert unnamed(broken_since(ROOT, tag, folder, modules), NAMED) == []


def test_the_page_says_what_is_promised_for_each_module() -> None:
    page = (ROOT / "docs" / "public-api.md").read_text("utf-8")
    assert [
        name
        for modules in public_api.PUBLIC.values()
        for name in modules
        if name.removesuffix(".*") not in page
    ] == []


def test_a_name_is_a_line(tmp_path: Path) -> None:
    assert made(tmp_path).splitlines() == [
        "class tiny.Point(NamedTuple)",
        "def tiny.Point.__init__(self, x: float, y: float = 0.0)",
        "def tiny.Point.length(self, *, power: int = 2) -> float",
        (
            "def tiny.scaled(point: Point, by: float = 2.0, /, *rest: float, "
            "exact: bool = False) -> Point"
        ),
        "def tiny.shifted(point, x, y)",
    ]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("by: float = 2.0", "by: float = 3.0", ["tiny.scaled(by)"]),
        ("by: float = 2.0", "by: float", ["tiny.scaled(by)"]),
        ("by: float = 2.0", "by: int = 2.0", ["tiny.scaled(by)"]),
        ("2.0, /,", "2.0,", ["tiny.scaled(point)", "tiny.scaled(by)"]),
        ("*rest: float, exact", "*, exact", ["tiny.scaled(*rest)"]),
        ("exact: bool", "to: str, exact: bool", ["tiny.scaled(to)"]),
        ("False) -> Point", "False) -> float", ["tiny.scaled"]),
        ("point, x, y", "point, y, x", ["tiny.shifted"]),
        ("point, x, y", "point, x", ["tiny.shifted(y)"]),
        (
            "    x: float\n    y",
            "    z: float\n    y",
            ["tiny.Point.__init__(x)", "tiny.Point.__init__(z)"],
        ),
        ("y: float = 0.0", "y: float = 1.0", ["tiny.Point.__init__(y)"]),
        ("power: int = 2", "power: int = 3", ["tiny.Point.length(power)"]),
        ("def length", "def size", ["tiny.Point.length", "tiny.Point.size"]),
        ('["Point", ', "[", ["tiny.Point"]),
        ('"shifted"]', '"shifted", "private"]', ["tiny.private"]),
        (
            "class Point(NamedTuple)",
            "class Point(tuple)",
            ["tiny.Point", "tiny.Point.__init__", "tiny.Point.x", "tiny.Point.y"],
        ),
        ("def _inner(self)", "def _outer(self, more)", []),
        ("def private()", "def private(more)", []),
        ("def scaled", "# a comment\ndef scaled", []),
    ],
)
def test_a_change_is_seen(tmp_path: Path, old: str, new: str, found: list[str]) -> None:
    assert TINY.count(old) == 1
    seen = changes(made(tmp_path), made(tmp_path, TINY.replace(old, new)))
    assert [change.name for change in seen] == found
    assert len(unnamed(seen, "Some changes.")) == len(found)
    assert unnamed(seen, "".join(f"- `{name}`: why.\n" for name in found)) == []


def test_a_change_is_named_to_the_letter() -> None:
    change = Change("tiny.scaled(by)", "was `by = 2.0`, is `by = 3.0`")
    for near in ("tiny.scaled(by)", "`tiny.scaled`", "`scaled(by)`", "`tiny.scaled(by) `"):
        assert unnamed([change], near) == [
            "CHANGELOG.md does not name `tiny.scaled(by)`, which was `by = 2.0`, is `by = 3.0`"
        ]
    assert unnamed([change], "- `tiny.scaled(by)` is 3.") == []


def test_only_what_is_not_released_names_a_change() -> None:
    released = "## 1.0.0\n\n- `a`\n\n### Public names\n\n- `b`\n\n### Fixed\n\n- `c`\n"
    before = released.replace("1.0.0", "Unreleased").replace("`b`", "`d`")
    assert named_changes(f"# Changelog\n\n{before}\n{released}", "Unreleased").strip() == "- `d`"
    assert named_changes(f"# Changelog\n\n{released}\n{before}").strip() == "- `b`"
    assert named_changes(f"# Changelog\n\n{released}", "Unreleased") == ""
    assert named_changes("# Changelog\n\n## Unreleased\n\n- `a`\n\n" + released, "Unreleased") == ""


def test_a_release_writes_the_names_that_the_changelog_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, changelog = tmp_path / "names.txt", tmp_path / "CHANGELOG.md"
    monkeypatch.setattr(public_api, "NAMES", recorded)
    monkeypatch.setattr(public_api, "CHANGELOG", changelog)
    old = current().replace("unamp conformance --seed = 0", "unamp conformance --seed = 7")
    recorded.write_text(old, "utf-8")
    changelog.write_text("# Changelog\n\n## 1.0.0\n\n### Public names\n\n- Nothing.\n", "utf-8")
    assert public_api.main() == 1
    assert recorded.read_text("utf-8") == old
    changelog.write_text(
        changelog.read_text("utf-8").replace("Nothing", "`unamp conformance --seed` is 0"), "utf-8"
    )
    assert public_api.main() == 0
    assert recorded.read_text("utf-8") == current()


def test_a_command_and_its_options_are_lines() -> None:
    lines = list(public_api.commands())
    assert "unamp diff BEFORE = required" in lines
    assert "unamp conformance --seed = 0" in lines
    seen = changes("\n".join(lines), "\n".join(lines).replace("--seed = 0", "--seed = 1"))
    assert [change.name for change in seen] == ["unamp conformance --seed"]
    assert [
        change.name
        for change in changes(
            "\n".join(lines), "\n".join(x for x in lines if not x.startswith("unamp diff"))
        )
    ] == ["unamp diff"]


def test_a_deprecated_name_stays_a_line(tmp_path: Path) -> None:
    source = TINY + (
        '__getattr__ = deprecated_names(__name__, {"Dot": '
        'Deprecation("1.0.0", until="2.0.0", instead="tiny.Point")})\n'
    )
    said = "Deprecation('1.0.0', until='2.0.0', instead='tiny.Point')"
    assert made(tmp_path, source).splitlines()[-1] == f"tiny.Dot = {said}"


def test_griffe_looks_back_to_the_newest_tag(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = "-c user.name=nobody -c user.email=nobody@localhost -c commit.gpgsign=false".split()
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init", "--initial-branch", "main")
    assert newest_tag(tmp_path) is None
    made(tmp_path)
    git("add", "tiny")
    git("commit", "-m", "first")
    git("tag", "unrelated")
    assert newest_tag(tmp_path) is None
    git("tag", "v1.0.0")
    assert newest_tag(tmp_path) == "v1.0.0"
    assert broken_since(tmp_path, "v1.0.0", ".", ["tiny"]) == []
    changed = (
        TINY.replace("by: float = 2.0", "by: float = 3.0")
        .replace("def length", "def size")
        .replace("_inner", "_other")
    )
    made(
        tmp_path, changed.replace(', "shifted"', "").replace("def shifted(point, x, y): ...\n", "")
    )
    broken = broken_since(tmp_path, "v1.0.0", ".", ["tiny"])
    assert {change.name for change in broken} == {
        "tiny.scaled(by)",
        "tiny.Point.length",
        "tiny.shifted",
    }
    assert len(unnamed(broken, "`tiny.scaled(by)`, `tiny.shifted`")) == 1
