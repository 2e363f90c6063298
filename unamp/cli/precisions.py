"""`explain` and `diff` for `precision.toml`, the file of a policy and its rules for layers."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.table import Table

from unamp.cli import printing
from unamp.cli.arguments import checked
from unamp.explaining import differences
from unamp.layers import LayerRule
from unamp.precision import Precision


def read_precision(path: Path) -> Precision:
    """Return the precision that a file holds; raise typer.BadParameter where it cannot be read."""
    try:
        return Precision.read(path)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(
            f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
        ) from error


def show_precision(precision: Precision) -> None:
    """Print a policy, its reasons, and the rules for layers."""
    printing.say(f"{precision.policy!r}{_because(precision.reason)}")
    for entry, reason in precision.reasons.items():
        printing.say(f"{entry}{_because(reason)}")
    table = Table(
        "layers",
        "policy",
        "result",
        "reason",
        title="rules for layers; the last that matches counts",
    )
    for rule in precision.layers:
        table.add_row(rule.pattern, str(rule.policy), rule.result or "", rule.reason)
    if table.rows:
        printing.show(table)


def diff_files(before: str, after: str, as_json: bool) -> None:
    """Print the operations and the layers whose rule changes from one file to another."""
    old, new = (read_precision(Path(path)) for path in (before, after))
    changed = checked(lambda: differences(old.policy, new.policy))
    layers = _changed_layers(old, new)
    if as_json:
        printing.print_json(
            {
                "before": old.policy.to_data(),
                "after": new.policy.to_data(),
                "operations": {
                    op: {"before": a.rule.value, "after": b.rule.value}
                    for op, (a, b) in changed.items()
                },
                "layers": [
                    {"pattern": pattern, "before": _said(a), "after": _said(b)}
                    for pattern, a, b in layers
                ],
            }
        )
        return
    table = Table(
        "operation",
        before,
        after,
        "came from",
        "comes from",
        title=f"operations that change: {len(changed)}",
    )
    for op, (a, b) in changed.items():
        table.add_row(op, printing.rule(a.rule), printing.rule(b.rule), a.origin, b.origin)
    printing.show(table)
    table = Table("layers", before, after, title=f"rules for layers that change: {len(layers)}")
    for pattern, old_rule, new_rule in layers:
        table.add_row(pattern, _said(old_rule), _said(new_rule))
    printing.show(table)


def _changed_layers(
    old: Precision, new: Precision
) -> list[tuple[str, LayerRule | None, LayerRule | None]]:
    """Return the patterns whose rules differ or changed their order, with both rules."""
    a, b = ({rule.pattern: rule for rule in precision.layers} for precision in (old, new))
    both = [pattern for pattern in a if pattern in b]
    moved = both != [pattern for pattern in b if pattern in a]
    found = []
    for pattern in dict.fromkeys([*a, *b]):
        before, after = a.get(pattern), b.get(pattern)
        same = before and after and (before.policy, before.result) == (after.policy, after.result)
        if not same or moved:
            found.append((pattern, before, after))
    return found


def _said(rule: LayerRule | None) -> str:
    if rule is None:
        return ""
    return f"{rule.policy}, result {rule.result}" if rule.result else str(rule.policy)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
