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

#: The width in a pipe: no line of a table is broken or cut, so that each row is one whole line.
_PIPE = 10_000


def rule(value: Rule) -> Text:
    """Return a rule, in its colour."""
    return Text(value.value, style=_RULES[value])


def support(value: str) -> Text:
    """Return the word for how an operation is carried out, in its colour."""
    return Text(value, style=_SUPPORT.get(value, ""))


def change(value: Change) -> tuple[str | Text, ...]:
    """Return the table cells of an operation whose rule changes.

    They are its name, the number of its runs if that is known, both rules, and both origins.
    """
    times = () if value.times is None else (str(value.times),)
    before, after = value.before, value.after
    return value.op, *times, rule(before.rule), rule(after.rule), before.origin, after.origin


def show(table: Table) -> None:
    """Print a table."""
    # Without markup: `unamp[torch]` is the name of an extra, not a style.
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=_PIPE)
        table.box, table.pad_edge = None, False
        # A table breaks its title at its own width, which may be small: print it apart.
        title, table.title = table.title, None
        if title:
            console.print(title)
    for column in table.columns:  # two names that are cut could look the same
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
        # a broken address is no link
        wrapper.break_long_words = wrapper.break_on_hyphens = False
        text = "\n".join(map(wrapper.fill, text.split("\n")))
    print(text)


def printable(text: str) -> str:
    """Return a text from outside as one line, with unprintable characters escaped.

    A terminal obeys control characters, and a name may not be valid text.
    """
    return text if text.isprintable() else ascii(text)[1:-1]


def print_json(data: object) -> None:
    """Print JSON."""
    print(json.dumps(data, indent=2))
