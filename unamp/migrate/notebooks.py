"""Migrate a notebook's code cells as one script; the rest of the file stays unchanged."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from json import JSONDecoder
from typing import NamedTuple, TypeVar

from unamp.migrate.findings import FileResult, Finding, Kind, RegionPolicy
from unamp.migrate.screening import mentions

#: A result with a line, to be placed in its cell.
Placed = TypeVar("Placed", Finding, RegionPolicy)

_DECODER = JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")

#: The line before each cell in the script of all cells.
_MARK = '"\ue000cell {}\ue000"\n'
_MARKS = re.compile(r'^"\ue000cell (\d+)\ue000"\n', re.MULTILINE)

#: Lines for the notebook itself: magics, shell commands, questions. A backslash continues a line.
#: Possessive quantifiers: a line of blanks is tried once, not once from each blank.
_MAGIC = re.compile(
    r"^([ \t]*+)(?:[%!?]|[\w.,* \t]++=[ \t]*[%!]|[\w.%]++\?{1,2}[ \t]*$)(?:.*\\\n)*.*$",
    re.MULTILINE,
)
#: Magics of a whole cell whose other lines are Python.
_PYTHON_CELLS = ("%%capture", "%%prun", "%%time", "%%timeit")


class _Cell(NamedTuple):
    """A code cell: its number in the notebook (from 1), its source, and the source's span."""

    number: int
    source: str
    start: int
    end: int


def migrate_notebook(text: str, migrate: Callable[[str], FileResult]) -> FileResult:
    """Return the migrated text of a notebook, and the findings in its cells.

    Raises:
        ValueError: where the text is no notebook.
    """
    cells = _code_cells(text)
    if not any(mentions(cell.source.encode("utf-8", "replace")) for cell in cells):
        return FileResult(text, [], [])
    hidden: list[str] = []
    scripts, findings = [], []
    for cell in cells:
        script, problem = _as_python(cell.source, hidden)
        scripts.append(script)
        if problem and mentions(cell.source.encode("utf-8", "replace")):
            first = cell.source.strip().partition("\n")[0][:100]
            hand = "look at it by hand"
            findings.append(
                Finding(1, 1, Kind.LOOK, first, why=problem, hand=hand, cell=cell.number)
            )
    done = migrate(
        "".join(
            f"{_MARK.format(cell.number)}{script}\n"
            for cell, script in zip(cells, scripts, strict=True)
        )
    )
    starts, line = [], 1
    for script in scripts:
        starts.append(line)
        line += script.count("\n") + 2

    def placed(place: Placed) -> Placed:
        index = max(index for index, start in enumerate(starts) if start <= place.line)
        return place._replace(line=max(1, place.line - starts[index]), cell=cells[index].number)

    findings += [placed(finding) for finding in done.findings]
    new = _replaced(text, cells, _split(done.text, cells, hidden))
    return FileResult(
        new,
        sorted(findings, key=lambda each: (each.cell, each.line)),
        [placed(each) for each in done.regions],
    )


def _code_cells(text: str) -> list[_Cell]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no notebook: {error}") from None
    if isinstance(data, dict) and "worksheets" in data:
        raise ValueError(
            "it is a notebook of an older format; "
            "`jupyter nbconvert --to notebook` brings it up to date"
        )
    if not isinstance(data, dict) or not isinstance(data.get("cells"), list):
        raise ValueError("it is no notebook: it has no list of cells")
    if "python" not in _language(data.get("metadata")):
        return []
    start, _ = dict(_members(text, _BLANK.match(text).end()))["cells"]  # type: ignore[union-attr]
    cells = []
    for number, ((at, _), cell) in enumerate(
        zip(_items(text, start), data["cells"], strict=True), 1
    ):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        lines = [source] if isinstance(source, str) else source
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise ValueError(f"it is no notebook: the source of cell {number} is no text")
        if "source" in cell:
            cells.append(_Cell(number, "".join(lines), *dict(_members(text, at))["source"]))
    return cells


def _language(metadata: object) -> str:
    """Return the language of a notebook's kernel; Python where the metadata name none."""
    for entry, name in (("kernelspec", "language"), ("language_info", "name")):
        told = metadata.get(entry) if isinstance(metadata, dict) else None
        language = told.get(name) if isinstance(told, dict) else None
        if isinstance(language, str):
            return language.lower()
    return "python"


def _members(text: str, at: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the names in the JSON object that begins at `at`, each with the span of its value."""
    at = _skip(text, at + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield name, (start, end)
        at = _next(text, end)


def _items(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of the values in the JSON array that begins at `at`."""
    at = _skip(text, at + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield at, end
        at = _next(text, end)


def _skip(text: str, at: int) -> int:
    return _BLANK.match(text, at).end()  # type: ignore[union-attr]


def _next(text: str, end: int) -> int:
    at = _skip(text, end)
    return _skip(text, at + 1) if text[at] == "," else at


def _as_python(source: str, hidden: list[str]) -> tuple[str, str]:
    """Return a cell's source as Python, and a reason where all of it is hidden as no Python.

    Lines that are not Python are replaced by placeholders, and appended to `hidden`.
    """

    def hide(text: str, indent: str = "") -> str:
        hidden.append(text)
        return _placeholder(len(hidden) - 1, text, indent)

    if not _problem(source):
        return source, ""
    if source.startswith("%%"):
        head, line_end, rest = source.partition("\n")
        if not head.startswith(_PYTHON_CELLS):
            return hide(source), ""
        if _problem(rest):
            return hide(source), "what it holds cannot be read as Python"
        return hide(head) + line_end + rest, ""
    tried = len(hidden)
    python = _MAGIC.sub(lambda found: hide(found[0], found[1]), source)
    if not (problem := _problem(python)):
        return python, ""
    del hidden[tried:]
    return hide(source), f"the cell cannot be read as Python: {problem}"


def _placeholder(number: int, text: str, indent: str) -> str:
    """Return a statement with as many lines as a hidden text has."""
    return f"{indent}pass  #\ue000{number}\ue000" + "\n" * text.count("\n")


def _problem(source: str) -> str:
    """Return the reason why a cell is not Python; empty where it is."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(source, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        return error.msg or "invalid syntax"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return ""


def _split(script: str, cells: Sequence[_Cell], hidden: Sequence[str]) -> list[str]:
    """Return the sources of the cells from the script of all cells.

    Raises:
        ValueError: where a cell's mark is missing.
    """
    head, *parts = _MARKS.split(script)
    if [int(number) for number in parts[::2]] != [cell.number for cell in cells]:
        raise ValueError(
            "its cells cannot be told apart once they are migrated; it is left as it is"
        )
    sources = [part.removesuffix("\n") for part in parts[1::2]]
    sources[0] = head + sources[0]
    for number, text in enumerate(hidden):
        place = re.compile(rf"[ \t]*{re.escape(_placeholder(number, text, ''))}")
        sources = [place.sub(lambda _, text=text: text, source, count=1) for source in sources]
    return sources


def _replaced(text: str, cells: Sequence[_Cell], sources: Sequence[str]) -> str:
    """Return a notebook with new sources in the cells whose source changed."""
    parts, at = [], 0
    for cell, source in zip(cells, sources, strict=True):
        if source != cell.source:
            parts += [
                text[at : cell.start],
                _encoded(text[cell.start : cell.end], source, plain=text.isascii()),
            ]
            at = cell.end
    return "".join([*parts, text[at:]])


def _encoded(old: str, source: str, *, plain: bool) -> str:
    """Return a source as JSON in the layout of the old one; unchanged lines stay as written."""
    if not old.startswith("["):
        return json.dumps(source, ensure_ascii=plain)
    spans = list(_items(old, 0))
    written = {json.loads(old[start:end]): old[start:end] for start, end in spans}
    lines = [
        written.get(line) or json.dumps(line, ensure_ascii=plain) for line in _LINES.findall(source)
    ]
    if not spans:
        return f"[{', '.join(lines)}]"
    opening, closing = old[1 : spans[0][0]], old[spans[-1][1] : -1]
    between = old[spans[0][1] : spans[1][0]] if len(spans) > 1 else f",{opening or ' '}"
    return f"[{opening}{between.join(lines)}{closing}]"
