"""The command `migrate`: rewrite the mixed precision of a code base."""

from __future__ import annotations

import difflib
import json
import sys
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unamp.cli.arguments import AsJson, checked, write_file
from unamp.cli.printing import print_json, printable
from unamp.policy import Policy

if TYPE_CHECKING:
    from unamp.migrate import RegionPolicy, Report
    from unamp.migrate.files import Migrated


class _To(StrEnum):
    DIALECTS = "dialects"
    UNAMP = "unamp"


class _Shown(StrEnum):
    PRESET = "preset"
    RULES = "rules"


def migrate(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Files, and folders whose Python files, notebooks, JSON and YAML to look at."
        ),
    ],
    write: Annotated[
        bool, typer.Option("--write", help="Replace the files. Without it nothing is touched.")
    ] = False,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff", help="Print what changes as a diff, and what stays on standard error."
        ),
    ] = False,
    to: Annotated[
        _To,
        typer.Option(
            help="dialects: only imports change. unamp: plain unamp, defaults made explicit."
        ),
    ] = _To.UNAMP,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Whose spellings, with commas between: "
            "torch, apex, paddle, mindspore, tensorflow.",
        ),
    ] = None,
    policy: Annotated[
        _Shown | None,
        typer.Option(
            help="Print the policy that each region comes to; "
            "rules: with how many operations run how."
        ),
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option(help="Write the findings here as SARIF 2.1.0, too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite the mixed precision of PyTorch, apex, PaddlePaddle, MindSpore and Keras for unamp.

    Whatever has to be done by hand is listed.

    Exits with 0 where nothing was found (with --write: where nothing is left), with 1 where
    something was, with 2 where a file could not be read or written.
    """
    try:
        from unamp.migrate import Target, migrate_paths
        from unamp.migrate.sarif import as_sarif
        from unamp.migrate.spellings import FRAMEWORKS, framework_named
    except ModuleNotFoundError as error:
        package = {"libcst": "libcst", "yaml": "PyYAML"}.get(str(error.name).partition(".")[0])
        if package is None:
            raise
        print(
            f"`unamp migrate` needs {package}, which is not installed; "
            "pip install 'unamp[migrate]'",
            file=sys.stderr,
        )
        raise typer.Exit(2) from None
    words = [word.strip() for word in (origin or "").split(",") if word.strip()]
    frameworks = checked(lambda: [framework_named(word) for word in words]) or FRAMEWORKS
    if policy is not None and write:
        raise typer.BadParameter(
            "--policy looks at code as it is, and --write changes it; run one after the other"
        )
    report = migrate_paths(paths, Target(to.value), frameworks, write=write)
    if sarif is not None:
        write_file(sarif, json.dumps(as_sarif(report), indent=2) + "\n")
    if policy is not None:
        _show_policies(report, policy, as_json)
    elif as_json:
        print_json(_as_data(report, write=write))
    else:
        if diff:
            sys.stdout.write("".join(map(_diff, report.files)))
        _show(report, write=write, stays_alone=diff)
    for path, said in report.errors:
        print(printable(f"{path}: error: {said}"), file=sys.stderr)
    raise typer.Exit(_status(report, write=write, policy=policy is not None))


def _status(report: Report, *, write: bool, policy: bool) -> int:
    if report.errors:
        return 2
    if policy:
        return int(any(file.regions for file in report.files))
    return int(any(finding.kind.stays or not write for _, finding in report.findings))


def _show(report: Report, *, write: bool, stays_alone: bool) -> None:
    out = sys.stderr if stays_alone else sys.stdout
    counts: Counter[str] = Counter()
    for path, finding in report.findings:
        counts[finding.kind.value] += 1
        if finding.kind.stays or not stays_alone or finding.kind.value == "note":
            print(printable(f"{path}:{finding.place}: {finding}"), file=out)
    print(_summary(report, counts, write=write), file=out)


def _summary(report: Report, counts: Counter[str], *, write: bool) -> str:
    changed = sum(file.changed for file in report.files)
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing found"
    files = f"{report.read} file{'s' if report.read != 1 else ''} read"
    if not changed:
        return f"{files}: {said}"
    done = f"{changed} written" if write else f"{changed} would change, which --write does"
    return f"{files}: {said}; {done}"


def _diff(file: Migrated) -> str:
    before, after = (text.splitlines(keepends=True) for text in (file.before, file.after))
    name = printable(str(file.path))
    lines = difflib.unified_diff(before, after, name, name)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _as_data(report: Report, *, write: bool) -> dict[str, object]:
    return {
        "files": report.read,
        "changed": [str(file.path) for file in report.files if file.changed],
        "written": write,
        "findings": [{"file": str(path), **finding.to_data()} for path, finding in report.findings],
        "errors": [{"file": str(path), "error": said} for path, said in report.errors],
    }


def _show_policies(report: Report, shown: _Shown, as_json: bool) -> None:
    regions = [(file.path, region) for file in report.files for region in file.regions]
    if as_json:
        data = [{"file": str(path), **region._asdict()} for path, region in regions]
        print_json({"files": report.read, "regions": data})
        return
    for path, region in regions:
        print(printable(f"{path}:{region.place}: {_policy_line(region, shown)}"))
    print(
        f"{report.read} files read: {len(regions)} regions, "
        f"{len({str(region.policy) for _, region in regions})} policies"
    )


def _policy_line(region: RegionPolicy, shown: _Shown) -> str:
    policy = Policy.from_data(region.policy)
    said = region.unknown.get("policy") or repr(policy)
    unknown = "".join(
        f", {name}={text}" for name, text in region.unknown.items() if name != "policy"
    )
    where = f" for {region.where}" if region.where else ""
    known = f"; only a run knows{unknown[1:]}" if unknown else ""
    return f"{said}{where}{known}{_rules(policy) if shown is _Shown.RULES else ''}  [{region.call}]"


def _rules(policy: Policy) -> str:
    if policy.preset == "native":
        return "; its rules depend on the framework and the device"
    counts = Counter(rule.value for rule in policy.rules.values())
    return "; " + ", ".join(f"{count} {rule}" for rule, count in sorted(counts.items()))
