"""Imports go one way: conformance, unamp, entry point, adapter, framework.

Inside each, no import goes back up. docs/architecture.md describes the order. The tests read
imports from the source, also those inside functions and those for a type checker.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"torch", "paddle", "mindspore", "tensorflow", "keras", "jax"}
ADAPTERS = sorted(path for path in (ROOT / "adapters").iterdir() if (path / "__init__.py").exists())
CORE = sorted((ROOT / "unamp").rglob("*.py"))
CONFORMANCE = sorted((ROOT / "conformance").rglob("*.py"))

#: The packages that a part of the core may import beside the standard library. Each is imported
#: only when the command line runs.
THIRD_PARTY = {
    "unamp.cli": {"typer", "rich"},
    "unamp._pages": {"jinja2", "markupsafe"},
    "unamp.adapter.kept_calls": {"numpy", "safetensors"},
    "unamp.adapter.signatures": {"numpy"},
    "unamp.tracing.replaying": {"ml_dtypes", "numpy", "safetensors"},
    "unamp.tuning.progress": {"rich"},
    "unamp.migrate": {"libcst", "yaml"},
    "unamp.onnx": {"onnx", "google"},
    "unamp._toml_editing": {"tomlkit"},
}

#: The floors of the core, the lowest first. A module imports from its own floor and from lower
#: ones.
FLOORS = (
    (
        "errors",
        "dtypes",
        "_version",
        "typing",
        "_data",
        "_entry_points",
        "_on_import",
        "_compiler_marks",
        "_deprecation",
        "_forking",
        "_function_types",
        "_grouping",
        "_open_regions",
    ),
    (
        "_argument_names",
        "_pages",
        "_region_decorator",
        "_spelling_files",
        "_strict_json",
        "_precision_toml",
        "_toml_editing",
    ),
    ("vocabulary", "presets", "lists", "policy", "made_with"),
    ("adapter",),
    ("amp_warnings", "devices", "error_notes", "regions"),
    (
        "networks",
        "default_regions",
        "scaling",
        "decoration",
        "custom_function",
        "explaining",
        "checking",
        "testing",
        "layers",
        "precision",
        "registration",
        "results",
    ),
    ("tracing",),
    ("tuning", "watching"),
    ("",),  # the module `unamp` itself
    ("dialects", "migrate", "onnx"),  # thin, and built on modules that everybody can import
    ("exporting",),  # reads ONNX files with the floor below
    ("cli", "__main__"),
)

#: The floors of the suite, the lowest first.
SUITE = (
    ("results", "reading", "subjects", "gaps", "machine"),
    ("check",),
    ("run",),
    ("report", "meta"),
    ("", "cli", "__main__", "pytest_checks", "pytest_plugin", "test_conformance"),
)

HOUSES = {"unamp": FLOORS, "unamp_conformance": SUITE}
SUITE_FILES = sorted((ROOT / "conformance/unamp_conformance").rglob("*.py"))

#: Imports that go back up; docs/architecture.md has the reason.
BACK_UP = {("unamp", "unamp.dialects")}


def module(path: Path) -> str:
    """Return the name by which a file is imported."""
    home = next(
        home
        for home in (ROOT / "adapters", ROOT / "conformance", ROOT)
        if path.is_relative_to(home)
    )
    parts = path.relative_to(home).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> Mapping[str, Path]:
    """Return our modules by name, with their files."""
    return {
        module(path): path
        for path in (*CORE, *CONFORMANCE, *(p for a in ADAPTERS for p in a.rglob("*.py")))
    }


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the modules that a file imports, wherever in it."""
    return frozenset(_imported(ast.parse(path.read_text("utf-8"))))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else node.module


def packages(path: Path) -> set[str]:
    """Return the top-level packages that a file imports."""
    return {name.partition(".")[0] for name in imports(path)}


def floor(name: str) -> int:
    """Return the floor of a module of the core or of the suite; -1 where it has none."""
    package, _, rest = name.partition(".")
    return next(
        (n for n, rooms in enumerate(HOUSES[package]) if rest.partition(".")[0] in rooms), -1
    )


def circles(names: set[str]) -> list[set[str]]:
    """Return the groups of modules that import each other in a loop."""
    arrows = {
        name: {to for to in imports(modules()[name]) & names if (name, to) not in BACK_UP} - {name}
        for name in names
    }

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        ahead = list(arrows[start])
        while ahead:
            if (name := ahead.pop()) not in found:
                found.add(name)
                ahead.extend(arrows[name])
        return found

    reach = {name: reached(name) for name in names}
    looped = {
        frozenset(other for other in names if other in reach[name] and name in reach[other])
        for name in names
    }
    return [set(loop) for loop in looped if loop]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", CORE, ids=_name)
def test_the_core_imports_itself_and_the_standard_library(path: Path) -> None:
    allowed = {"unamp"}.union(
        *(more for part, more in THIRD_PARTY.items() if module(path).startswith(part))
    )
    # for a type checker alone; tests/core/test_imports.py checks that no run imports it
    of_types = {"numpy"}
    assert packages(path) - sys.stdlib_module_names - of_types <= allowed


@pytest.mark.parametrize("path", CORE, ids=_name)
def test_the_core_names_no_adapter(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not [name for name in (f"unamp_{framework}" for framework in FRAMEWORKS) if name in text]


@pytest.mark.parametrize("path", [*CORE, *SUITE_FILES], ids=_name)
def test_no_arrow_runs_back_up(path: Path) -> None:
    package, own = module(path).partition(".")[0], floor(module(path))
    assert own >= 0, (
        f"{module(path)} stands on no floor: give it one, here and in docs/architecture.md"
    )
    upward = [to for to in imports(path) if to.partition(".")[0] == package and floor(to) > own]
    assert [to for to in upward if (module(path), to) not in BACK_UP] == []


def test_the_core_has_no_circle() -> None:
    assert circles({module(path) for path in CORE}) == []


def test_conformance_has_no_circle() -> None:
    assert circles({module(path) for path in CONFORMANCE if module(path) in modules()}) == []


@pytest.mark.parametrize("path", CONFORMANCE, ids=_name)
def test_conformance_imports_no_framework_and_no_adapter(path: Path) -> None:
    assert packages(path) & (FRAMEWORKS | {adapter.name for adapter in ADAPTERS}) == set()


@pytest.mark.parametrize("adapter", ADAPTERS, ids=_name)
def test_an_adapter_imports_its_own_framework_only(adapter: Path) -> None:
    framework = adapter.name.removeprefix("unamp_")
    for path in adapter.rglob("*.py"):
        forbidden = (
            FRAMEWORKS - {framework}
            | {a.name for a in ADAPTERS if a != adapter}
            | {"unamp_conformance"}
        )
        assert packages(path) & forbidden == set(), _name(path)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=_name)
def test_an_adapter_has_no_circle(adapter: Path) -> None:
    assert circles({module(path) for path in adapter.rglob("*.py")}) == []


def _passing_the_door(room: str) -> list[str]:
    """Return the modules outside a package that import one of its inner modules."""
    outside = {
        name: path for name, path in modules().items() if not f"{name}.".startswith(f"{room}.")
    }
    return [
        name
        for name, path in outside.items()
        if any(each.startswith(f"{room}.") and each in modules() for each in imports(path))
    ]


@pytest.mark.parametrize("room", ["unamp_torch.keras"])
def test_a_room_in_an_adapter_has_one_door(room: str) -> None:
    assert room in modules()
    assert len([name for name in modules() if name.startswith(f"{room}.")]) > 1, (
        "nothing is behind the door"
    )
    assert _passing_the_door(room) == []


def test_who_passes_a_door_is_seen() -> None:
    assert "unamp_torch.plans" in _passing_the_door("unamp.adapter")


def test_there_are_adapters() -> None:
    assert "unamp_torch" in [adapter.name for adapter in ADAPTERS]


def _promised(path: Path) -> bool:
    """Return whether a module must have `__all__`.

    Packages must, and so must the modules that docs/public-api.md names.
    """
    alone = {"unamp.testing", "unamp.typing"}
    dialect = module(path).startswith("unamp.dialects.") and not path.name.startswith("_")
    return path.name == "__init__.py" or dialect or module(path) in alone


@pytest.mark.parametrize("path", [path for path in CORE if _promised(path)], ids=_name)
def test_every_public_module_says_what_it_offers(path: Path) -> None:
    assigned = [
        t.id
        for n in ast.parse(path.read_text("utf-8")).body
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    ]
    assert "__all__" in assigned, f"{_name(path)} has no __all__"


def _taken_from_inside(source: str) -> list[str]:
    """Return the private names that a source imports from the core's modules.

    A module without `__all__` offers all its other names.
    """
    tree = ast.parse(source)
    froms = [
        (n.module or "", alias)
        for n in ast.walk(tree)
        if isinstance(n, ast.ImportFrom)
        for alias in n.names
    ]
    ours = [(home, alias) for home, alias in froms if home.partition(".")[0] == "unamp"]
    held = {
        alias.asname or alias.name for home, alias in ours if f"{home}.{alias.name}" in modules()
    }
    taken = [
        f"{home}.{alias.name}"
        for home, alias in ours
        if _own(alias.name) and f"{home}.{alias.name}" not in modules()
    ]
    return taken + [
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in held
        and _own(node.attr)
    ]


def _own(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("path", list(modules().values()), ids=_name)
def test_every_other_module_offers_what_has_no_underscore(path: Path) -> None:
    assert _taken_from_inside(path.read_text("utf-8")) == []


def test_who_takes_what_a_module_keeps_to_itself_is_seen() -> None:
    assert _taken_from_inside("from unamp.policy import Policy, _rules") == ["unamp.policy._rules"]
    assert _taken_from_inside("from unamp import _version, policy\npolicy._rules") == [
        "policy._rules"
    ]


def test_the_kit_says_what_each_of_its_modules_is_for() -> None:
    kit = {path.stem for path in (ROOT / "unamp/adapter").glob("*.py")} - {"__init__"}
    told = (
        ast.get_docstring(ast.parse((ROOT / "unamp/adapter/__init__.py").read_text("utf-8"))) or ""
    )
    page = (ROOT / "docs/api/adapter.md").read_text("utf-8")
    assert [module for module in sorted(kit) if f"`{module}`" not in told] == []
    assert [module for module in sorted(kit) if f"::: unamp.adapter.{module}\n" not in page] == []
