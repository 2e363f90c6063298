"""Named selections of comparisons, for one question that several sections answer."""

from __future__ import annotations

from benchmarks.sections import SECTIONS

__all__ = ["SELECTIONS", "chosen"]

#: Each with its sections, and of each section the comparisons whose title fits the pattern.
SELECTIONS: dict[str, dict[str, str]] = {
    # Where people wait: steps of low parameters, regions, small operations, narrow layers, first
    # traces.
    "waiting": {
        "decorated-steps": "*",
        "decorated-steps-python": "*",
        "paddle-decorated": "*",
        "tensorflow-decorated": "*",
        "mindspore-decorated": "*",
        "regions": "*, outermost",
        "regions-python": "*, outermost",
        "changed-python": "*",
        "paddle-regions": "*",
        "paddle-steps": "* of width 128, *",
        "tensorflow-first-trace": "*",
        "mindspore-regions": "*",
        "mindspore-operations": "*",
    },
    "memory": {name: "*" for name in SECTIONS if name.endswith("memory")},
    "everything": dict.fromkeys(SECTIONS, "*"),
}


def chosen(names: list[str], only: str | None, *, quick: bool) -> dict[str, str]:
    """Return the sections to run, each with the pattern of its titles.

    Args:
        names: sections by name; none: all, of which a quick run leaves out the slow ones.
        only: the name of a selection, in place of sections.
        quick: whether it is a quick run.

    Raises:
        ValueError: for a name that is none, and for both a selection and sections.
    """
    if only is not None and names:
        raise ValueError(f"--only {only} and sections ({', '.join(names)}): give one of them")
    if only is not None and only not in SELECTIONS:
        raise ValueError(f"unknown selection {only!r}; valid: {', '.join(SELECTIONS)}")
    if unknown := sorted(set(names) - set(SECTIONS)):
        raise ValueError(f"unknown: {', '.join(unknown)}; valid: {', '.join(SECTIONS)}")
    if only is not None:
        return SELECTIONS[only]
    return dict.fromkeys(
        names or [name for name, section in SECTIONS.items() if section.quick or not quick], "*"
    )
