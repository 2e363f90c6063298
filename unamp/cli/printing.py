"""Output of the commands: coloured tables on a terminal, plain columns in a pipe, or JSON."""

from __future__ import annotations

import json
import textwrap

from rich.console import Console
from rich.table import Table
from rich.text import Text

from unamp.explaining import Change
from unamp.policy import Rule

_RULES = dict.fromkeys(Rule, "") | {
    Rule.LOW: "green", Rule.FP32: "blue", Rule.UNTOUCHED: "dim", Rule.BANNED: "bold red"
}  # fmt: skip
_SUPPORT = {
    "native": "green",
    "intercepted": "green",
    "emulated": "yellow",
    "unsupported": "red",
    "absent": "dim",
}

#: No line of a table in a pipe is broken or cut: whoever reads it wants all of it, a row a line.
_PIPE = 10_000


def rule(value: Rule) -> Text:
    """Return a rule, in its colour."""
    return Text(value.value, style=_RULES[value])


def support(value: str) -> Text:
    """Return the word for how something is carried out, in its colour."""
    return Text(value, style=_SUPPORT.get(value, ""))


def change(value: Change) -> tuple[str | Text, ...]:
    """Return the table cells of an operation whose rule changes.

    They are its name, how often it ran if that is known, both rules, and both origins.
    """
    times = () if value.times is None else (str(value.times),)
    before, after = value.before, value.after
    return value.op, *times, rule(before.rule), rule(after.rule), before.origin, after.origin


def show(table: Table) -> None:
    """Print a table."""
    # No markup: `unamp[torch]` is the name of an extra, not a style.
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=_PIPE)
        table.box, table.pad_edge = None, False
        # A table's title is broken where the table ends, which may be soon.
        title, table.title = table.title, None
        if title:
            console.print(title)
    for column in table.columns:  # names that are cut can be those of two rows
        column.overflow = "fold"
    if table.rows:
        console.print(table)
    elif table.title:
        console.print(table.title)


def say(text: str, indent: int = 4) -> None:
    """Print a sentence: wrapped and indented on a terminal, on one line in a pipe."""
    console = Console()
    if console.is_terminal:
        wrapper = textwrap.TextWrapper(console.width, subsequent_indent=" " * indent)
        # an address that is broken leads nowhere
        wrapper.break_long_words = wrapper.break_on_hyphens = False
        text = "\n".join(map(wrapper.fill, text.split("\n")))
    print(text)


def printable(text: str) -> str:
    """Return a foreign text as one line, escaped where it holds anything unprintable.

    A terminal obeys control characters, and a name may be no valid text at all.
    """
    return text if text.isprintable() else ascii(text)[1:-1]


def print_json(data: object) -> None:
    """Print JSON."""
    print(json.dumps(data, indent=2))
