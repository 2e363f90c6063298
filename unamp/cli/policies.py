"""The commands about policies: `ops`, `explain` and `diff`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from unamp._grouping import grouped
from unamp.adapter import DEVICES, registry
from unamp.cli import printing
from unamp.cli.arguments import DTYPES, AsJson, checked, given, import_framework
from unamp.cli.precisions import diff_files, read_precision, show_precision
from unamp.cli.printing import print_json, show
from unamp.cli.traces import read_trace
from unamp.explaining import Change, Explanation, changes, explain, lists_behind, rules_of_versions
from unamp.policy import LEVELS, Decision, Policy, Rule
from unamp.presets import PRESETS, preset
from unamp.tracing import ran_under
from unamp.typing import PresetName
from unamp.vocabulary import Operation, vocabulary


def ops(
    name: Annotated[
        str | None, typer.Argument(help="One operation, in any framework's spelling.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the operations of the vocabulary, or show everything about one."""
    if name is not None:
        _show_operation(checked(lambda: vocabulary()[vocabulary().resolve(name)]), as_json)
    elif as_json:
        print_json({op.name: _as_data(op) for op in vocabulary().values()})
    else:
        _show_vocabulary()


def explain_command(
    file: Annotated[
        Path | None, typer.Argument(help="A precision.toml, in place of the options of a policy.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help=f"The base lists: {', '.join(PRESETS)}; unamp where not given."),
    ] = None,
    level: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(LEVELS)}; O1 where not given.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help=f"{DTYPES}; float16 where not given.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="An operation to run in the low dtype; repeat for more."),
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option(help="An operation to run in float32; repeat for more.")
    ] = None,
    promote: Annotated[
        bool, typer.Option(help="At O2: operations on no list run in their widest input dtype.")
    ] = False,
    framework: Annotated[
        str | None, typer.Option(help="Import this framework and say how it carries each rule out.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help=f"{' or '.join(DEVICES)}; both where not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show each operation's rule, the rule's origin, and how a framework carries it out."""
    if framework is not None:
        import_framework(framework)
    stated = given(preset=preset, level=level, dtype=dtype)
    stated |= {name: tuple(value) for name, value in (("allow", allow), ("deny", deny)) if value}
    stated |= {"promote": True} if promote else {}
    precision = None if file is None else read_precision(file)
    if precision is not None and stated:
        raise typer.BadParameter(f"{file} states the policy; leave --{next(iter(stated))} out")
    policy = checked(lambda: Policy(**stated)) if precision is None else precision.policy
    explained = checked(lambda: explain(policy, framework, device))
    if as_json:
        operations = {op: _explained_as_data(e) for op, e in explained.items()}
        print_json(
            operations
            if precision is None
            else {"layers": precision.layers.to_data(), "operations": operations}
        )
        return
    if precision is not None:
        show_precision(precision)
    if framework is not None and (lists := lists_behind(policy, framework, device)):
        installed = f"{framework} {registry.adapter_for(framework).version()}"
        printing.say(
            f"preset native: shown by the lists of {lists}, the newest; "
            f"in force are those of {installed}"
        )
    where = sorted({place for e in explained.values() for place in e.how})
    differ = ("in other versions",) if any(e.versions for e in explained.values()) else ()
    table = Table(
        "operation", "rule", "comes from", *differ, *(" on ".join(place) for place in where)
    )
    for op, e in explained.items():
        how = (printing.support(e.how[place].value) for place in where)
        table.add_row(
            op, printing.rule(e.rule), e.origin, *(_versions(e.versions) for _ in differ), *how
        )
    show(table)


def diff(
    before: Annotated[
        str,
        typer.Argument(metavar="PRESET|FILE", help="The lists that you know, or a precision.toml."),
    ],
    after: Annotated[
        str,
        typer.Argument(
            metavar="PRESET|FILE", help="The lists that you move to, or another such file."
        ),
    ],
    level: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(LEVELS)}; O1, or the trace's.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help=f"{DTYPES}; float16, or the trace's.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="An operation on both allow lists; repeat for more.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option(help="An operation on both deny lists; repeat for more.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="A trace's JSON: show only what ran in it, under its policies."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the operations whose rule changes from one preset, or file, to another.

    With --trace: only the operations that ran in it.
    """
    if before.endswith(".toml") or after.endswith(".toml"):
        if any(value is not None for value in (level, dtype, allow, deny, trace)):
            raise typer.BadParameter(
                "files state their policies; "
                "--level, --dtype, --allow, --deny and --trace go with presets"
            )
        diff_files(before, after, as_json)
        return
    stated = given(level=level, dtype=dtype)
    lists = {"allow": tuple(allow or ()), "deny": tuple(deny or ())}
    ran = None if trace is None else checked(lambda: ran_under(read_trace(trace), **stated))
    bases = checked(
        lambda: (
            [Policy(**stated)] if ran is None else list(dict.fromkeys(policy for policy, _ in ran))
        )
    )
    found = checked(
        lambda: changes({"preset": before, **lists}, {"preset": after, **lists}, ran, bases)
    )
    if as_json:
        print_json(
            {
                "before": before,
                "after": after,
                "policies": [policy.to_data() for policy in bases],
                **_as_changes(found),
            }
        )
        return
    table = Table(
        "operation", *(() if ran is None else ("times",)), before, after, "came from", "comes from"
    )
    for c in found:
        table.add_row(*printing.change(c))
    under = (
        f"at {bases[0].level} in {bases[0].dtype}"
        if len(bases) == 1
        else f"under {len(bases)} policies"
    )
    of = "" if ran is None else f", of the {len({op for _, op in ran})} that ran"
    table.title = f"{len({c.op for c in found})} operations change {under}{of}"
    show(table)


def _as_changes(found: list[Change]) -> dict[str, object]:
    operations: dict[str, list[dict[str, object]]] = {}
    for c in found:
        times = {} if c.times is None else {"times": c.times}
        operations.setdefault(c.op, []).append(
            {"before": _decided(c.before), "after": _decided(c.after), **times}
        )
    return {"operations": operations}


def _decided(decision: Decision) -> dict[str, object]:
    return {"rule": decision.rule.value, "origin": decision.origin, "advice": decision.advice}


def _show_vocabulary() -> None:
    frameworks = vocabulary().frameworks
    table = Table(
        "operation",
        "group",
        *frameworks,
        title=f"{len(vocabulary())} operations, and their first spellings",
    )
    for op in vocabulary().values():
        table.add_row(
            op.name, op.group, *(next(iter(op.spellings.get(name, ())), "") for name in frameworks)
        )
    show(table)


def _show_operation(op: Operation, as_json: bool) -> None:
    rules = {
        name: Policy(preset=name).decide(op.name) for name in PRESETS if not preset(name).delegates
    }
    if as_json:
        print_json(
            {
                "name": op.name,
                **_as_data(op),
                "rules": {name: rule.value for name, rule in rules.items()},
            }
        )
        return
    table = Table("", "", title=op.name, show_header=False)
    table.add_row("group", op.group)
    if op.parts:
        table.add_row("computes with", ", ".join(op.parts))
    if op.members:
        table.add_row("stands for", ", ".join(op.members))
    for framework, spellings in op.spellings.items():
        table.add_row(f"in {framework}", ", ".join(spellings))
    table.add_section()
    for name, rule in rules.items():
        table.add_row(
            f"preset {name}", printing.rule(rule) + " at O1" + _elsewhere(name, op.name, rule)
        )
    show(table)


def _elsewhere(name: PresetName, op: str, rule: Rule) -> str:
    rules = {
        version: found[op]
        for version, found in rules_of_versions(Policy(preset=name)).items()
        if found[op] is not rule
    }
    return f"; {_versions(rules)}" if rules else ""


def _as_data(op: Operation) -> dict[str, object]:
    spellings = {framework: list(words) for framework, words in op.spellings.items()}
    return {
        "group": op.group,
        "parts": list(op.parts),
        "members": list(op.members),
        "spellings": spellings,
    }


def _explained_as_data(e: Explanation) -> dict[str, object]:
    how: dict[str, dict[str, str]] = {}
    for (framework, device), carried_out in e.how.items():
        how.setdefault(framework, {})[device] = carried_out.value
    versions = {version: rule.value for version, rule in e.versions.items()}
    return {"rule": e.rule.value, "origin": e.origin, "how": how, "versions": versions}


def _versions(rules: Mapping[str, Rule]) -> str:
    """Return the rules of other versions as text: each rule with its versions."""
    by_rule = grouped(rules, lambda version: rules[version])
    return "; ".join(f"{rule.value} in {', '.join(versions)}" for rule, versions in by_rule.items())
