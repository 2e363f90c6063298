"""Migrate files and folders: find the files, read them, and replace them as a whole."""

from __future__ import annotations

import codecs
import io
import os
import tempfile
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import libcst as cst

from unamp.migrate.configurations import report_json, report_yaml
from unamp.migrate.deciding import Target
from unamp.migrate.exports import Exports
from unamp.migrate.findings import FileResult, Finding, RegionPolicy
from unamp.migrate.migrating import migrate_source
from unamp.migrate.notebooks import migrate_notebook
from unamp.migrate.screening import mentions
from unamp.migrate.spellings import FRAMEWORKS

_LEFT_OUT = frozenset(
    {".git", ".hg", ".mypy_cache", ".ruff_cache", ".tox", ".venv", "__pycache__", "node_modules"}
)

#: Files that are not Python, by suffix: the most bytes to read.
_MOST = {".ipynb": 64 << 20, ".json": 1 << 20, ".yaml": 1 << 18, ".yml": 1 << 18}


class Migrated(NamedTuple):
    """A file with findings: its text before and after."""

    path: Path
    before: str
    after: str
    findings: Sequence[Finding]
    regions: Sequence[RegionPolicy]

    @property
    def changed(self) -> bool:
        """Return whether the text changes."""
        return self.before != self.after


class Report(NamedTuple):
    """The outcome for some paths: files with findings, errors, and the number of files read."""

    files: Sequence[Migrated]
    errors: Sequence[tuple[Path, str]]
    read: int

    @property
    def findings(self) -> list[tuple[Path, Finding]]:
        """All findings, each with its file."""
        return [(file.path, finding) for file in self.files for finding in file.findings]


class _Content(NamedTuple):
    text: str
    encoding: str
    mark: bytes


def migrate_paths(
    paths: Sequence[Path],
    target: Target = Target.UNAMP,
    frameworks: Collection[str] = FRAMEWORKS,
    *,
    write: bool = False,
) -> Report:
    """Migrate files, and the Python, notebooks, JSON and YAML in folders.

    An error in one file is reported, and the others are migrated.

    Args:
        paths: files and folders.
        target: the kind of code to write.
        frameworks: the frameworks whose spellings are moved.
        write: replace the files. Without it nothing is changed.
    """
    files: list[Migrated] = []
    errors: list[tuple[Path, str]] = []
    known: dict[Path, Mapping[str, frozenset[str]]] = {}
    count = 0
    for path in _files(paths, errors):
        count += 1
        try:
            done = _migrate(path, target, frameworks, Exports(path, known))
            if write and done is not None and done.changed:
                _replace(path, done)
        except (
            OSError,
            UnicodeError,
            SyntaxError,
            ValueError,
            RecursionError,
            cst.ParserSyntaxError,
            cst.CSTValidationError,
        ) as error:
            errors.append((path, _said(error)))
            continue
        if done is not None and (done.findings or done.regions):
            files.append(done)
    return Report(files, errors, count)


def _files(paths: Sequence[Path], errors: list[tuple[Path, str]]) -> Iterator[Path]:
    seen: set[Path] = set()
    for path in paths:
        for found in _inside(path, errors):
            # several links may lead to one file, which must be migrated once
            try:
                real = found.resolve(strict=True)
            except (OSError, RuntimeError) as error:
                errors.append((found, _said(error)))
                continue
            if real not in seen:
                seen.add(real)
                yield found


def _inside(path: Path, errors: list[tuple[Path, str]]) -> Iterator[Path]:
    """Yield a file, or a folder's files to read, in order; linked folders are not entered."""
    try:
        is_folder = path.is_dir()
    except OSError as error:
        errors.append((path, _said(error)))
        return
    if not is_folder:
        yield path
        return
    for folder, inner, names in os.walk(
        path, onerror=lambda error: errors.append((Path(error.filename), _said(error)))
    ):
        inner[:] = sorted(name for name in inner if name not in _LEFT_OUT)
        found = (
            Path(folder, name) for name in sorted(names) if name.endswith((".py", ".pyi", *_MOST))
        )
        # a pipe is left out: reading from it would block for ever
        yield from (path for path in found if path.is_file() or not path.exists())


def _migrate(
    path: Path, target: Target, frameworks: Collection[str], exports: Exports
) -> Migrated | None:
    most = _MOST.get(path.suffix)
    if most is not None and (size := path.stat().st_size) > most:
        if path.suffix != ".ipynb":  # too large for a configuration: it is data
            return None
        raise ValueError(
            f"it has {size >> 20} MB, and up to {most >> 20} are read; clear its outputs"
        )
    content = path.read_bytes()
    if not mentions(content):
        return None
    text = _read(path, content).text

    def migrated(script: str) -> FileResult:
        return migrate_source(script, target, frameworks, exports)

    if path.suffix == ".ipynb":
        result = migrate_notebook(text, migrated)
    elif path.suffix == ".json":
        result = report_json(text)
    elif path.suffix in (".yaml", ".yml"):
        result = report_yaml(text)
    else:
        result = migrated(text)
    return Migrated(path, text, result.text, result.findings, result.regions)


def _read(path: Path, content: bytes) -> _Content:
    """Return a file's text with its own line ends, its encoding and its byte order mark."""
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    encoding = "utf-8"
    if path.suffix not in _MOST:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    encoding = "utf-8" if encoding == "utf-8-sig" else encoding
    try:
        return _Content(content[len(mark) :].decode(encoding), encoding, mark)
    except LookupError as error:  # some of Python's encodings, such as rot13, do not decode bytes
        raise ValueError(f"its encoding, {encoding}, is none of text") from error


def _replace(path: Path, done: Migrated) -> None:
    """Replace a file by its new text in one operation; its permissions stay.

    Raises:
        OSError: where it cannot be written, or has changed since it was read.
    """
    real = path.resolve(strict=True)
    if not os.access(real, os.W_OK):
        raise PermissionError(13, "it is read-only, and was not written", str(path))
    read = _read(path, real.read_bytes())
    if read.text != done.before:
        raise OSError("it has changed since it was read, and was not written")
    handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(read.mark + done.after.encode(read.encoding))
        os.chmod(name, real.stat().st_mode)
        os.replace(name, real)
    except BaseException:
        os.unlink(name)
        raise


def _said(error: Exception) -> str:
    if isinstance(error, cst.ParserSyntaxError):
        return f"it is no Python: {error.message} (line {error.raw_line})"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not {error.encoding}: byte {error.start} is {error.object[error.start]:#04x}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply to be read"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
