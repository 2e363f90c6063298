"""Each example in the documents belongs to one framework, and links and commands exist."""

from __future__ import annotations

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from documents import FILES, FRAMEWORKS, ROOT, Example, every_command, every_example, examples

from unamp.cli.commands import app

AT_ROOT = [*FILES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
TABLES = sorted((ROOT / "docs" / "tables").glob("*.md"))


@pytest.mark.parametrize("example", every_example(), ids=str)
def test_an_example_runs_in_one_frameworks_process(example: Example) -> None:
    assert len(example.frameworks() - {"keras"}) <= 1


@pytest.mark.parametrize("example", examples(), ids=str)
def test_example_without_a_framework(example: Example) -> None:
    example.run()


@pytest.mark.parametrize("example", [e for e in every_example() if e.excerpt()], ids=str)
def test_an_excerpt_is_what_the_file_has(example: Example) -> None:
    file, parts = example.excerpt() or (None, [])
    assert file is not None
    assert parts
    text = file.read_text("utf-8")
    assert [part for part in parts if f"\n{part}\n" not in text] == []


@pytest.mark.parametrize("file", AT_ROOT, ids=lambda file: file.name)
def test_links_lead_somewhere(file) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", file.read_text("utf-8")):
        assert target.startswith("https://") or (file.parent / target).exists(), target


@pytest.mark.parametrize("file", AT_ROOT, ids=lambda file: file.name)
def test_a_file_that_is_named_exists(file: Path) -> None:
    for name in re.findall(
        r"`((?:unamp|adapters|conformance|tests|benchmarks|docs)/[^`\s]*)`", file.read_text("utf-8")
    ):
        assert list(ROOT.glob(re.sub(r"<\w+>", "*", name).rstrip("/"))), name


def test_every_framework_has_its_tables() -> None:
    names = "capabilities.md gaps.md mutants.md presets.md tensor_kinds.md vocabulary.md".split()
    assert [file.name for file in TABLES] == names
    gaps = (ROOT / "docs" / "tables" / "gaps.md").read_text("utf-8")
    assert all(f"\n## {framework} " in gaps for framework in FRAMEWORKS[:4])


@pytest.mark.parametrize(
    ("file", "words"),
    every_command(),
    ids=lambda part: part.name if isinstance(part, Path) else " ".join(part),
)
def test_a_command_is_one_that_there_is(
    file: Path, words: list[str], pytestconfig: pytest.Config
) -> None:
    program, *arguments = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    match program, arguments:
        case "unamp", _:
            _parse(arguments)
        case "python", ["-m", "unamp_conformance", *options]:
            _parse(["conformance", *options])
        case "python", ["-m", module, *_]:
            spec = find_spec(module)  # finds the module without importing it and its framework
            assert spec is not None
            for home in spec.submodule_search_locations or ():
                assert (Path(home) / "__main__.py").exists()
        case "python", [script, *_]:
            assert (ROOT / script).is_file()
        case "mkdir", [_]:
            pass
        case "make", [target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        case "pip", ["install", package]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
                "optional-dependencies"
            ]
            assert set(package.removeprefix(".[").removesuffix("]").split(",")) <= set(extras)
        case "pytest", _:
            named = [word.partition("=")[0] for word in arguments if word.startswith("--unamp")]
            assert named
            assert all(
                hasattr(pytestconfig.option, name.removeprefix("--").replace("-", "_"))
                for name in named
            )
        case _:
            pytest.fail(f"no test knows the program {program}")


def _parse(arguments: list[str]) -> None:
    """Have the command line parse its arguments, and run nothing."""
    command = typer.main.get_command(app)
    while arguments and arguments[0] in getattr(command, "commands", ()):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context("unamp", list(arguments))
