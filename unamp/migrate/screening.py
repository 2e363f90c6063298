"""Tell quickly, and without libcst, which files need a closer look."""

from __future__ import annotations

import re
from functools import cache

from unamp.migrate.spellings import table, watch

__all__ = ["may_have_spellings", "mentions"]

#: Names too common to tell anything: one of these counts beside a framework's root alone.
_COMMON = frozenset({"decorate", "initialize", "init", "state_dict", "load_state_dict", "Model", "Policy", "optimize"})


@cache
def _words() -> re.Pattern[str]:
    """Return a pattern of the last parts of all names, of the modules, and of the strings and keywords that are looked at."""
    leaves = {name.rpartition(".")[2] for name in (*table().rows, *table().modules)} - _COMMON
    leaves |= watch().strings | watch().keywords
    return re.compile(rf"\b(?:{'|'.join(sorted(map(re.escape, leaves)))})\b")


@cache
def _roots() -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(sorted(table().roots))}|unamp)\b")


def mentions(content: bytes) -> bool:
    """Return whether a file's bytes can hold a spelling."""
    return may_have_spellings(content.decode("latin-1"))


def may_have_spellings(text: str) -> bool:
    """Return whether a text can hold a spelling: a framework's root, and a word of the tables."""
    return _roots().search(text) is not None and _words().search(text) is not None
