"""Report settings in configuration files: DeepSpeed's in JSON, several libraries' in YAML."""

from __future__ import annotations

import re
from functools import cache
from json import JSONDecoder

import yaml

from unamp.migrate.findings import FileResult, Finding, Kind
from unamp.migrate.settings import configured, is_section, section_names, section_words

_DECODER = JSONDecoder()

#: How many times a part of a JSON file may be read: once for each section around it.
_DEEPEST = 8


def report_json(text: str) -> FileResult:
    """Return a file's text unchanged, and its sections that switch mixed precision on.

    Raises:
        ValueError: where a section is not valid JSON.
    """
    findings = []
    left = _DEEPEST * len(text)
    line, begin, counted = 1, 0, 0  # lines are counted on from the last finding: linear time
    for found in _sections().finditer(text):
        try:
            value, end = _DECODER.raw_decode(text, found.start("value"))
        except ValueError as error:
            raise ValueError(f"it is no JSON: {error}") from None
        if (left := left - (end - found.start("value"))) < 0:
            raise ValueError("its sections stand in each other too deeply")
        if is_section(found["name"], value):
            line += text.count("\n", counted, found.start())
            begin = max(begin, text.rfind("\n", counted, found.start()) + 1)
            counted = found.start()
            findings.append(
                Finding(
                    line, counted - begin + 1, Kind.LOOK, f'"{found["name"]}"', **section_words()
                )
            )
    return FileResult(text, findings, [])


@cache
def _sections() -> re.Pattern[str]:
    return re.compile(rf'"(?P<name>{"|".join(section_names())})"\s*:\s*(?P<value>\{{)')


def report_yaml(text: str) -> FileResult:
    """Return a file's text unchanged, and its settings that switch mixed precision on.

    The file is not trusted: no object is built from a tag, and no alias is expanded.

    Raises:
        ValueError: where the text is not valid YAML.
    """
    findings: list[Finding] = []
    try:
        for root in yaml.compose_all(text, Loader=yaml.SafeLoader):
            findings += _found(root)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" (line {mark.line + 1})"
        raise ValueError(
            f"it is no YAML: {getattr(error, 'problem', None) or type(error).__name__}{where}"
        ) from None
    return FileResult(text, sorted(set(findings), key=lambda each: (each.line, each.column)), [])


def _found(root: yaml.Node | None) -> list[Finding]:
    findings: list[Finding] = []
    left = _MOST_ENTRIES
    plain = cache(_plain)  # by node: many aliases may name the same section
    waiting: list[tuple[yaml.Node | None, tuple[str, ...]]] = [(root, ())]
    # an alias is the very node that it names, and may stand inside of that node
    seen: set[tuple[int, tuple[str, ...]]] = set()
    while waiting:
        node, path = waiting.pop()
        if (id(node), path[-1:]) in seen:
            continue
        seen.add((id(node), path[-1:]))
        if isinstance(node, yaml.CollectionNode) and (left := left - len(node.value)) < 0:
            raise ValueError("its aliases stand for too much")
        if isinstance(node, yaml.SequenceNode):
            waiting += [(each, path) for each in node.value]
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inside = (*path[-_DEEP:], key.value if isinstance(key, yaml.ScalarNode) else "")
                waiting.append((value, inside))
                mark = key.start_mark
                if finding := configured(inside, plain(value), mark.line + 1, mark.column + 1):
                    findings.append(finding)
    return findings


#: The most entries to look at. An alias's entries count once for each key that the alias stands at.
_MOST_ENTRIES = 1 << 16
#: The number of keys around an entry that are looked at.
_DEEP = 2


def _plain(node: yaml.Node) -> object:
    """Return a scalar's value, or the values of a section's scalars; None for everything else."""
    if isinstance(node, yaml.MappingNode):
        pairs = ((key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode))
        return {
            key.value: _plain(value) if isinstance(value, yaml.ScalarNode) else None
            for key, value in pairs
        }
    if not isinstance(node, yaml.ScalarNode):
        return None
    if node.tag == "tag:yaml.org,2002:bool":
        return node.value.lower() in ("true", "yes", "on")
    if node.tag == "tag:yaml.org,2002:int" and node.value.isdecimal() and len(node.value) < 5:
        return int(node.value)
    return node.value if node.tag == "tag:yaml.org,2002:str" else None
