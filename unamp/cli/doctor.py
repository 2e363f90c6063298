"""The command `doctor`: the installed frameworks' abilities on this machine.

Each framework is imported in a process of its own: some pairs fail in one process, depending on
their order.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from rich.table import Table

from unamp.adapter import DEVICES, MayBeFaster, NamesDevices, machine
from unamp.adapter.registry import adapter_for, installed
from unamp.cli import printing
from unamp.dtypes import LOW_DTYPES

_Report = dict[str, Any]


def examine_all() -> _Report:
    """Return a report on this machine and, from `examine`, on every installed framework.

    The machine's part has its processor, its instruction sets, and the relevant environment
    variables.
    """
    return {
        "processor": machine.processor(),
        "instruction sets": [name for name, there in machine.instruction_sets().items() if there],
        "variables": machine.variables(),
        "frameworks": [_in_own_process(framework) for framework in sorted(installed())],
    }


def examine(framework: str) -> _Report:
    """Import one framework here, and return a report on its version, dtypes and runtime."""
    importlib.import_module(framework)
    adapter = adapter_for(framework)
    present = adapter.devices()
    return {
        "framework": framework,
        "status": "ready",
        "version": adapter.version(),
        "requires": adapter.requires,
        "devices": {
            device: {dtype: adapter.support(device, dtype).value for dtype in LOW_DTYPES}
            if device in present
            else None
            for device in DEVICES
        },
        "device names": dict(adapter.device_names()) if isinstance(adapter, NamesDevices) else {},
        "runtime": dict(adapter.runtime()),
        "faster": adapter.faster() if isinstance(adapter, MayBeFaster) else None,
        "gaps": [gap._asdict() for gap in adapter.gaps()],
    }


def _in_own_process(framework: str) -> _Report:
    if find_spec(framework) is None:
        return {
            "framework": framework,
            "status": "not installed",
            "advice": f"pip install 'unamp[{framework}]'",
        }
    ran = subprocess.run(
        [sys.executable, "-m", __name__, framework], capture_output=True, text=True, check=False
    )
    # Frameworks print greetings on standard output. The report is the last line.
    last = ran.stdout.strip().rpartition("\n")[2]
    if not ran.returncode and last.startswith('{"framework"'):
        report: _Report = json.loads(last)
        return report
    said = ran.stderr.strip().rpartition("\n")[2] if ran.returncode else ""
    ended = f"importing it ended the process with status {ran.returncode}"
    return {"framework": framework, "status": "not usable", "advice": said or ended}


def show_frameworks(reports: Sequence[_Report]) -> None:
    """Print every framework, and how each of its devices computes in each dtype."""
    table = Table("framework", "version", "device", *LOW_DTYPES, title="what runs here, and how")
    for report in reports:
        if report["status"] != "ready":
            table.add_row(report["framework"], report["status"], report["advice"])
            continue
        for device, support in report["devices"].items():
            words = [support[dtype] for dtype in LOW_DTYPES] if support else ["device not present"]
            how = map(printing.support, words)
            table.add_row(report["framework"], report["version"], _named(device, report), *how)
    printing.show(table)


def _named(device: str, report: _Report) -> str:
    """Return a kind of device, with the framework's own word for it where they differ."""
    word = report.get("device names", {}).get(device, device)
    return device if word == device else f"{device} ({word})"


def show_machine(found: _Report) -> None:
    """Print the instruction sets there are and those in use, and the variables that change them."""
    printing.say(f"the processor: {found['processor'] or 'not told by this system'}")
    printing.say(
        f"it has: {' '.join(found['instruction sets']) or 'not told by this system'}", indent=2
    )
    for report in found["frameworks"]:
        if told := report.get("runtime"):
            facts = ", ".join(
                f"{name.replace('_', ' ')}: {machine.said(fact)}" for name, fact in told.items()
            )
            printing.say(f"{report['framework']} computes with: {facts}")
        if faster := report.get("faster"):
            printing.say(faster, indent=2)
    variables = " ".join(map("=".join, found["variables"].items()))
    printing.say(f"variables that change it: {variables or 'none is set'}")


def show_gaps(reports: Sequence[_Report], *, listed: bool) -> None:
    """Print the number, or the list, of things that adapters cannot do."""
    count = sum(len(report.get("gaps", ())) for report in reports)
    if count and not listed:
        printing.say(
            f"{count} things cannot be done; unamp doctor --gaps lists them, with the reasons"
        )
    for report in reports if listed else ():
        if gaps := report.get("gaps", ()):
            printing.say(f"\n{report['framework']} cannot do:")
        for gap in gaps:
            printing.say(f"- {gap['what']}: {gap['reason']} {gap['link']}".rstrip(), indent=2)


if __name__ == "__main__":
    print(json.dumps(examine(sys.argv[1])))
