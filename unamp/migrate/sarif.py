"""Findings as SARIF 2.1.0, the format that code hosts show beside the code."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from unamp._version import __version__
from unamp.migrate.files import Report
from unamp.migrate.findings import Finding, Kind

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"

_RULES = {
    Kind.MOVED: ("moved", "Mixed precision that `unamp migrate` moves", "note"),
    Kind.NOTE: ("note", "What is different once a call is moved", "note"),
    Kind.BY_HAND: ("by-hand", "Mixed precision that has to be moved by hand", "warning"),
    Kind.LOOK: ("look-here", "A place that may switch mixed precision on", "warning"),
    Kind.HINT: ("cast-by-hand", "A cast by hand beside mixed precision", "note"),
}


def as_sarif(report: Report) -> dict[str, object]:
    """Return a report as a SARIF log."""
    rules = [
        {"id": name, "shortDescription": {"text": text}, "defaultConfiguration": {"level": level}}
        for name, text, level in _RULES.values()
    ]
    driver = {"name": "unamp migrate", "version": __version__, "rules": rules}
    notifications = [
        {
            "level": "error",
            "message": {"text": f"{path}: {said}"},
            "locations": [{"physicalLocation": _file(path)}],
        }
        for path, said in report.errors
    ]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {"executionSuccessful": not report.errors, "toolExecutionNotifications": notifications}
        ],
        "results": [_result(path, finding) for path, finding in report.findings],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(path: Path, finding: Finding) -> dict[str, object]:
    name, _, level = _RULES[finding.kind]
    # Lines are counted within a notebook's cell: they are not the lines of its file.
    region = (
        {"startLine": 1}
        if finding.cell
        else {"startLine": finding.line, "startColumn": finding.column}
    )
    cell = f"cell {finding.cell}, line {finding.line}: " if finding.cell else ""
    return {
        "ruleId": name,
        "ruleIndex": list(_RULES).index(finding.kind),
        "level": level,
        "message": {"text": f"{cell}{finding}"},
        "locations": [{"physicalLocation": {**_file(path), "region": region}}],
    }


def _file(path: Path) -> dict[str, object]:
    uri = path.absolute().as_uri() if path.is_absolute() else _quoted(path)
    return {"artifactLocation": {"uri": uri}}


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(os.fsencode(PurePosixPath(*path.parts)))
