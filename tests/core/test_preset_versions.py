"""A preset whose name has a version has the lists of that version of the framework."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import unamp
from unamp import Policy, Rule
from unamp.adapter import major_minor
from unamp.presets import check_preset, preset, preset_names, preset_versions, with_version

VERSIONED = [name for name in unamp.PRESETS if preset_versions(name)]
LISTS = ("allow", "deny", "promote", "infer", "clear", "deny_o2", "by_dtype", "banned", "implied")


def test_rms_norm_moved_with_pytorch_2_12() -> None:
    for version, rule in {
        "2.8": Rule.WIDEST,
        "2.11": Rule.WIDEST,
        "2.12": Rule.FP32,
        "2.15": Rule.FP32,
    }.items():
        name: Any = f"torch-cuda@{version}"
        assert Policy(preset=name).decide("rms_norm") is rule
        assert preset(name).version.startswith(f"{version}.")
    assert (
        Policy(preset="torch-cuda@2.12").reason("rms_norm").origin
        == "preset torch-cuda@2.12: deny list"
    )


@pytest.mark.parametrize("name", VERSIONED)
def test_a_name_alone_is_the_newest(name: Any) -> None:
    newest, alone = preset(with_version(name)), preset(name)
    assert all(getattr(newest, each) == getattr(alone, each) for each in LISTS)


@pytest.mark.parametrize("name", VERSIONED)
def test_versions_are_those_of_the_rows_that_conform(name: str) -> None:
    rows = tomllib.loads(
        (Path(__file__).parents[2] / "conformance/versions.toml").read_text("utf-8")
    )
    versions = rows[preset(name).framework]["versions"]
    minors = {".".join(map(str, major_minor(version))) for version in versions}
    assert set(preset_versions(name)) == minors
    assert list(preset_versions(name)) == sorted(minors, key=major_minor)


@pytest.mark.parametrize("name", VERSIONED)
def test_a_difference_adds_what_is_missing_and_takes_what_is_there(name: str) -> None:
    files = resources.files("unamp").joinpath("data/presets")
    base, versions = (
        tomllib.loads(files.joinpath(path).read_text("utf-8"))
        for path in (f"{name}.toml", f"versions/{name}.toml")
    )
    assert versions.pop("schema") == 1
    assert versions.pop("preset") == name
    for difference in versions.values():
        assert difference["version"]
        assert difference["source"]
        for key, entries in difference.items():
            listed, _, how = key.rpartition("_")
            if how in ("with", "without"):
                assert entries == sorted(entries)
                assert set(entries) <= unamp.vocabulary().keys()
                assert (set(entries) & set(base[listed]) == set(entries)) is (how == "without")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "torch-cuda@2.9",
            "unknown version of preset 'torch-cuda' '2.9'; .*valid: 2.8, 2.10, 2.11",
        ),
        ("torch-cuda@", "unknown version of preset 'torch-cuda' ''"),
        ("torch-cuda@2.11@2.11", "unknown version of preset 'torch-cuda'"),
        ("unamp@1", "preset 'unamp' has no versions; write it without '@1'"),
        ("torch@2.11", "unknown preset 'torch@2.11'; did you mean"),
        (["torch-cuda"], "preset must be a string, not list"),
    ],
)
def test_an_unknown_version_is_an_error_that_lists_the_valid_ones(name: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        Policy(preset=name)


@pytest.mark.parametrize("name", preset_names())
def test_every_name_is_valid(name: Any) -> None:
    check_preset(name)
    assert Policy(preset=name).replace(level="O2").preset == name


def test_what_cannot_be_held_is_an_error() -> None:
    assert with_version("torch-cuda") == "torch-cuda@2.15"
    assert with_version("torch-cuda@2.11") == "torch-cuda@2.11"
    assert with_version("none") == "none"
    with pytest.raises(
        ValueError,
        match="preset 'unamp' has no versions; those whose lists can be held: torch-cuda, ",
    ):
        with_version("unamp")
