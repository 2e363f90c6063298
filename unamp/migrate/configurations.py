"""Report the sections of DeepSpeed's configuration in a JSON file."""

from __future__ import annotations

import re
from functools import cache
from json import JSONDecoder

from unamp.migrate.findings import FileResult
from unamp.migrate.settings import is_section, section, section_names

__all__ = ["report_configuration"]

_DECODER = JSONDecoder()


def report_configuration(text: str) -> FileResult:
    """Return the text of a file as it is, and the sections in it that switch mixed precision on.

    Raises:
        ValueError: where a section is no JSON.
    """
    findings = []
    for found in _sections().finditer(text):
        try:
            value, _ = _DECODER.raw_decode(text, found.start("value"))
        except ValueError as error:
            raise ValueError(f"it is no JSON: {error}") from None
        if is_section(found["name"], value):
            before = text[: found.start()]
            line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
            findings.append(section(f'"{found["name"]}"')._replace(line=line, column=column))
    return FileResult(text, findings, [])


@cache
def _sections() -> re.Pattern[str]:
    return re.compile(rf'"(?P<name>{"|".join(section_names())})"\s*:\s*(?P<value>\{{)')
