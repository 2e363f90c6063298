"""Who may import whom: conformance -> unamp -> (entry point) -> adapter -> framework."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"torch", "paddle", "mindspore", "tensorflow", "keras", "jax"}
ADAPTERS = sorted(path for path in (ROOT / "adapters").iterdir() if (path / "__init__.py").exists())
CORE = sorted((ROOT / "unamp").rglob("*.py"))
CONFORMANCE = sorted((ROOT / "conformance").rglob("*.py"))
#: What a module of the core may import beyond the standard library; all of it is imported only when the command line runs.
THIRD_PARTY = {"_commands.py": {"typer", "rich"}, "_showing.py": {"rich"}, "_trace_page.py": {"jinja2"}}


def imports(path: Path) -> set[str]:
    """The top-level packages that a file imports, wherever in it, but for what only a type checker reads."""
    return {name.partition(".")[0] for name in _imported(ast.parse(path.read_text("utf-8")))}


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
        yield from _imported(node)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", CORE, ids=_name)
def test_the_core_imports_itself_and_the_standard_library(path: Path) -> None:
    assert imports(path) - sys.stdlib_module_names <= {"unamp"} | THIRD_PARTY.get(path.name, set())


@pytest.mark.parametrize("path", CORE, ids=_name)
def test_the_core_names_no_adapter(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not [name for name in (f"unamp_{framework}" for framework in FRAMEWORKS) if name in text]


@pytest.mark.parametrize("path", CONFORMANCE, ids=_name)
def test_conformance_imports_no_framework_and_no_adapter(path: Path) -> None:
    assert imports(path) & (FRAMEWORKS | {adapter.name for adapter in ADAPTERS}) == set()


@pytest.mark.parametrize("adapter", ADAPTERS, ids=_name)
def test_an_adapter_imports_its_own_framework_only(adapter: Path) -> None:
    framework = adapter.name.removeprefix("unamp_")
    for path in adapter.rglob("*.py"):
        forbidden = FRAMEWORKS - {framework} | {a.name for a in ADAPTERS if a != adapter} | {"unamp_conformance"}
        assert imports(path) & forbidden == set(), _name(path)


def test_there_are_adapters() -> None:
    assert "unamp_torch" in [adapter.name for adapter in ADAPTERS]


#: What every adapter has; a framework's peculiarity may have a file of its own beside them.
SHARED = frozenset(
    f"{name}.py"
    for name in (
        "__init__", "activation", "adapter", "casting", "compiling", "decoration", "facts", "hooks", "kernels", "observing",
        "operations", "plans", "scaling", "spellings", "state",
    )
)  # fmt: skip


@pytest.mark.parametrize("adapter", ADAPTERS, ids=_name)
def test_adapters_have_the_same_files(adapter: Path) -> None:
    assert SHARED - {_name_in(adapter, path) for path in adapter.rglob("*.py")} == set()


def _name_in(adapter: Path, path: Path) -> str:
    return str(path.relative_to(adapter))


def test_every_public_module_says_what_it_offers() -> None:
    for path in CORE:
        if path.name in ("__main__.py", "_commands.py"):
            continue
        assigned = [
            t.id
            for n in ast.parse(path.read_text("utf-8")).body
            if isinstance(n, ast.Assign)
            for t in n.targets
            if isinstance(t, ast.Name)
        ]
        assert "__all__" in assigned, f"{_name(path)} has no __all__"
