"""Compare the public names with docs/api/names.txt, which has those of the last release.

`make api` writes the file for a release. Between releases it stays the same, and `changes` returns
the differences: a test requires that CHANGELOG.md names each. The code is read, not imported, so
that no framework is needed.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import griffe

ROOT = Path(__file__).parents[1]
NAMES = ROOT / "docs" / "api" / "names.txt"
CHANGELOG = ROOT / "CHANGELOG.md"

#: The modules whose `__all__` is public, by their folder; `.*` means all modules below one. A name
#: belongs to the first module that has it.
PUBLIC = {
    ".": (
        "unamp",
        "unamp.layers",
        "unamp.tracing",
        "unamp.tuning",
        "unamp.watching",
        "unamp.onnx",
        "unamp.testing",
        "unamp.typing",
        "unamp.adapter",
        "unamp.dialects.*",
    ),
    "adapters": ("unamp_jax", "unamp_jax.loss_scaling"),
}

#: The methods with two underscores that a user calls by name, or by calling the object.
_SPECIAL = ("__init__", "__call__")

#: A name, or the words of a command, and its description.
_LINE = re.compile(r"(?P<form>class |def |)(?P<name>.+?)(?P<rest>(?:\(|: | = | is ).*|)")

_HEAD = (
    (
        "# What is public, as the last release had it. docs/public-api.md says what is promised; "
        "`make api` writes this file for a"
    ),
    "# release, and a test has every change since then named in CHANGELOG.md.",
)


class Change(NamedTuple):
    """A change of a public name: the name that CHANGELOG must have, and the kind of change."""

    name: str
    said: str


class _Entry(NamedTuple):
    """A line of the file: `class `, `def ` or nothing, and the text behind the name."""

    form: str
    rest: str


def main() -> int:
    """Write the file, and return the exit status.

    The file is not written while CHANGELOG's newest section lacks a change.
    """
    new = current()
    old = NAMES.read_text("utf-8") if NAMES.exists() else new
    if missing := unnamed(changes(old, new), named_changes(CHANGELOG.read_text("utf-8"))):
        print("\n".join(missing))
        return 1
    NAMES.write_text(new, "utf-8")
    print(f"written: {NAMES}")
    return 0


def current() -> str:
    """Return the file's text for the code as it is now.

    It has a line for each public name, each word of the command line, and each format.
    """
    of_code = (line for folder, modules in PUBLIC.items() for line in names(ROOT / folder, modules))
    return "\n".join([*_HEAD, *of_code, *commands(), *formats()]) + "\n"


def names(home: Path, modules: Iterable[str]) -> Iterator[str]:
    """Yield a line for each public name of some modules of one package."""
    modules = tuple(modules)
    (package,) = {name.partition(".")[0] for name in modules}
    yield from _names(_load(home, package), modules, {})


def _load(home: Path, package: str) -> griffe.Module:
    found = griffe.load(package, search_paths=[home], try_relative_path=False, resolve_aliases=True)
    assert isinstance(found, griffe.Module)
    return found


def _names(root: griffe.Module, modules: Iterable[str], seen: dict[str, str]) -> Iterator[str]:
    """Yield the lines; note in `seen` the public name by which each object is first known."""
    for module in _expanded(root, modules):
        for name in sorted(str(each) for each in module.exports or ()):
            yield from _lines(f"{module.path}.{name}", _member(module, name), seen)
        yield from (f"{module.path}.{name} = {said}" for name, said in _deprecated(module))


def _expanded(root: griffe.Module, modules: Iterable[str]) -> Iterator[griffe.Module]:
    for name in modules:
        inner = name.removesuffix(".*").partition(".")[2]
        module = root[inner] if inner else root
        yield module
        if name.endswith(".*"):
            yield from _below(module)


def _below(module: griffe.Module) -> Iterator[griffe.Module]:
    for name, child in sorted(module.modules.items()):
        if not child.is_alias and not name.startswith("_"):
            yield child
            yield from _below(child)


def _member(module: griffe.Module, name: str) -> griffe.Object:
    found: Any = module.members.get(name)
    assert found is not None, f"{module.path}.__all__ has {name!r}, which is not in its source"
    if found.is_alias:
        found = found.final_target
    if found.is_module and name in found.members:
        # a function with the name of its module hides the module
        inner = found.members[name]
        return inner.final_target if inner.is_alias else inner
    return found


def _lines(public: str, found: griffe.Object, seen: dict[str, str]) -> Iterator[str]:
    if seen.setdefault(found.path, public) != public:
        yield f"{public} is {seen[found.path]}"
    elif found.is_module:
        yield f"{public} is a module"
    elif isinstance(found, griffe.Class):
        yield f"class {public}({', '.join(str(base) for base in found.bases)})"
        members = {**found.inherited_members, **found.members}
        fields = _fields(found)
        if fields:
            yield f"def {public}.__init__({', '.join(['self', *fields.values()])})"
        for name, member in members.items():
            if name not in fields and (name in _SPECIAL or not name.startswith("_")):
                target: Any = member.final_target if member.is_alias else member
                if target.path.partition(".")[0] == public.partition(".")[0]:
                    yield _line(f"{public}.{name}", target)
    else:
        yield _line(public, found)


def _fields(found: griffe.Class) -> dict[str, str]:
    """Return the fields of a NamedTuple, whose `__init__` is not in the source."""
    if not any(str(base).rpartition(".")[2] == "NamedTuple" for base in found.bases):
        return {}
    return {
        name: f"{name}{_annotated(field)}"
        for name, field in found.attributes.items()
        if "property" not in field.labels
    }


def _line(public: str, found: griffe.Object) -> str:
    if isinstance(found, griffe.Function):
        returns = f" -> {found.returns}" if found.returns is not None else ""
        said = f"def {public}({_parameters(found)}){returns}"
    elif isinstance(found, griffe.Class):
        said = f"class {public}({', '.join(str(base) for base in found.bases)})"
    else:
        assert isinstance(found, griffe.Attribute)
        said = f"{public}{_annotated(found)}"
    return re.sub(r"\s+", " ", said)


def _annotated(found: griffe.Attribute) -> str:
    """Return the annotation and the value of an attribute.

    A value that a method assigns is left out: no user could rely on it.
    """
    annotation = f": {found.annotation}" if found.annotation is not None else ""
    assigned = "instance-attribute" in found.labels and "class-attribute" not in found.labels
    return annotation if found.value is None or assigned else f"{annotation} = {found.value}"


def _parameters(function: griffe.Function) -> str:
    said, kinds = [], griffe.ParameterKind
    before: griffe.ParameterKind | None = None
    for parameter in function.parameters:
        kind = parameter.kind
        if before is kinds.positional_only and kind is not kinds.positional_only:
            said.append("/")
        if kind is kinds.keyword_only and before not in (kinds.keyword_only, kinds.var_positional):
            said.append("*")
        star = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(kind, "")
        default = f" = {parameter.default}" if parameter.default is not None and not star else ""
        said.append(
            f"{star}{parameter.name}"
            f"{f': {parameter.annotation}' if parameter.annotation is not None else ''}{default}"
        )
        before = kind
    if before is kinds.positional_only:
        said.append("/")
    return ", ".join(said)


def _deprecated(module: griffe.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that a module's `__getattr__` still knows, each with its `Deprecation`."""
    found = module.members.get("__getattr__")
    if isinstance(found, griffe.Attribute):
        for node in ast.walk(ast.parse(str(found.value))):
            if isinstance(node, ast.Dict):
                yield from (
                    (ast.literal_eval(key), ast.unparse(said))
                    for key, said in zip(node.keys, node.values, strict=True)
                    if key
                )


def commands() -> Iterator[str]:
    """Yield a line for each command, argument and option of `unamp`."""
    import typer

    from unamp.cli.commands import app

    def described(command: Any, words: str) -> Iterator[str]:
        yield f"{words} is a command"
        for each in command.params:
            spelled = "/".join((*each.opts, *each.secondary_opts))
            name = spelled if spelled.startswith("-") else spelled.upper()
            shown = getattr(each, "show_default", None)  # text, where the default is the machine's
            default = shown if isinstance(shown, str) else _plain(each.default)
            yield f"{words} {name} = {'required' if each.required else default}"
        for name, inner in sorted(getattr(command, "commands", {}).items()):
            yield from described(inner, f"{words} {name}")

    yield from described(typer.main.get_command(app), "unamp")


def _plain(default: object) -> str:
    if isinstance(default, Enum):
        default = default.value
    return str(default) if isinstance(default, Path) else repr(default)


def formats() -> Iterator[str]:
    """Yield a line for each format of a file that unamp writes and reads again."""
    from unamp_conformance import results

    from unamp import _precision_toml
    from unamp.layers import rules
    from unamp.tracing import as_json
    from unamp.tuning import resuming
    from unamp.watching import as_json as history

    yield f"precision.toml = version {_precision_toml.VERSION}"
    yield f"rules for layers as JSON = version {rules._VERSION}"
    yield f"trace as JSON = version {as_json.VERSION}"
    yield f"history of watch as JSON = version {history.VERSION}"
    yield f"runs of tune to resume = version {resuming._VERSION}"
    yield f"results.json of conformance = version {results.SCHEMA}"


def changes(old: str, new: str) -> list[Change]:
    """Return the changes from one text of the file to another: of names and of arguments."""
    before, after = _entries(old), _entries(new)
    found: list[Change] = []
    whole: set[str] = set()  # names that came or went with all members
    for name in (*before, *(each for each in after if each not in before)):
        if any(name.startswith((f"{each}.", f"{each} ")) for each in whole):
            continue
        was, now = before.get(name), after.get(name)
        if was == now:
            continue
        if was is None or now is None:
            found.append(Change(name, "is gone" if now is None else "is new"))
            whole.add(name)
        elif was.form == now.form == "def ":
            found += _signature_changes(name, was.rest, now.rest)
        else:
            found.append(
                Change(name, f"was `{was.form}{name}{was.rest}`, is `{now.form}{name}{now.rest}`")
            )
            if was.form != now.form:
                whole.add(name)
    return found


def _entries(text: str) -> dict[str, _Entry]:
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            assert match is not None, line
            found[match["name"]] = _Entry(match["form"], match["rest"])
    return found


def _signature_changes(name: str, old: str, new: str) -> Iterator[Change]:
    (before, returned), (after, returns) = _arguments(old), _arguments(new)
    for argument in (*before, *(each for each in after if each not in before)):
        was, now = before.get(argument), after.get(argument)
        if was != now:
            said = (
                "is gone"
                if now is None
                else "is new"
                if was is None
                else f"was `{was}`, is `{now}`"
            )
            yield Change(f"{name}({argument})", said)
    if [each for each in before if each in after] != [each for each in after if each in before]:
        yield Change(name, "takes its arguments in another order")
    if returned != returns:
        yield Change(name, f"returned `{returned}`, returns `{returns}`")


def _arguments(rest: str) -> tuple[dict[str, str], str]:
    """Return the arguments of a signature and its result.

    An argument has its kind, annotation and default.
    """
    (function,) = ast.parse(f"def f{rest}: ...").body
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(positional) - len(given.defaults)), *given.defaults]
    found = {
        each.arg: _argument("positional " if each in given.posonlyargs else "", each, default)
        for each, default in zip(positional, defaults, strict=True)
    }
    found |= {
        each.arg: _argument("keyword ", each, default)
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    }
    found |= {
        star + each.arg: _argument(star, each, None)
        for star, each in (("*", given.vararg), ("**", given.kwarg))
        if each
    }
    return found, ast.unparse(function.returns) if function.returns else ""


def _argument(kind: str, argument: ast.arg, default: ast.expr | None) -> str:
    return f"{kind}{ast.unparse(argument)}{'' if default is None else f' = {ast.unparse(default)}'}"


def unnamed(found: Iterable[Change], section: str) -> list[str]:
    """Return the changes that a section of CHANGELOG does not name.

    A name counts only in its exact spelling, between backticks.
    """
    named = set(re.findall(r"`([^`\n]+)`", section))
    return [
        f"CHANGELOG.md does not name `{each.name}`, which {each.said}"
        for each in found
        if each.name not in named
    ]


def named_changes(changelog: str, head: str = r"[^\n]*") -> str:
    """Return the text under "Public names" in the first section, or in the one with a head.

    Empty where there is none.
    """
    section = re.search(rf"^## {head}$(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    part = section and re.search(
        r"^### Public names$(.*?)(?=^### |\Z)", section[1], re.DOTALL | re.MULTILINE
    )
    return part[1] if part else ""


def newest_tag(home: Path) -> str | None:
    """Return the tag of the newest release in git.

    None in a clone without tags, and outside of a clone.
    """
    if not (home / ".git").exists() or shutil.which("git") is None:
        return None
    command = ["git", "-C", str(home), "describe", "--tags", "--abbrev=0", "--match", "v*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def broken_since(home: Path, tag: str, folder: str, modules: Iterable[str]) -> list[Change]:
    """Return the breaking changes of public names since a tag, as griffe finds them."""
    modules = tuple(modules)
    (package,) = {name.partition(".")[0] for name in modules}
    old = griffe.load_git(package, ref=tag, repo=home, search_paths=[folder], resolve_aliases=True)
    new = _load(home / folder, package)
    public: dict[str, str] = {}
    for tree in (new, old):
        for _ in _names(tree, modules, public):
            pass
    found = {}
    for breakage in griffe.find_breaking_changes(old, new):
        if name := _public_name(breakage, public):
            found[name] = Change(name, f"is not what it was in {tag}: {breakage.kind.value}")
    return list(found.values())


def _public_name(breakage: griffe.Breakage, public: Mapping[str, str]) -> str | None:
    path, inner = breakage.obj.canonical_path, ""
    while path not in public:
        path, dot, last = path.rpartition(".")
        if not dot:
            return None
        inner = f".{last}{inner}"
    if any(part.startswith("_") and part not in _SPECIAL for part in inner.split(".")):
        return None
    changed = [
        each
        for each in (breakage.old_value, breakage.new_value)
        if isinstance(each, griffe.Parameter)
    ]
    return f"{public[path]}{inner}" + (f"({changed[0].name})" if changed else "")


if __name__ == "__main__":
    sys.exit(main())
