"""Named selections of comparisons from several sections."""

from __future__ import annotations

from benchmarks.sections import SECTIONS

__all__ = ["SELECTIONS", "chosen"]

#: For each selection its sections, each with a pattern of the titles of comparisons.
SELECTIONS: dict[str, dict[str, str]] = {
    # the times for which people wait: steps of low parameters, regions, small operations, narrow
    # layers, first traces
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
        names: the names of sections; none means all, or the fast ones in a quick run.
        only: the name of a selection, instead of sections.
        quick: whether the run is quick.

    Raises:
        ValueError: for an unknown name, and for a selection beside sections.
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
