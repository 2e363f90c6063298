"""The results as JUnit XML, for continuous integration."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from unamp_conformance.results import UNEXPECTED, Report

__all__ = ["write"]

#: Characters that XML cannot hold, even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(report: Report, path: Path) -> None:
    """Write a test suite for each framework and device."""
    root = ET.Element("testsuites", name="unamp conformance")
    for run in report.runs:
        failures = sum(r.status in UNEXPECTED for r in run.results) + len(run.problems)
        absent = int(run.ended == "not run")
        unusable = int(run.ended not in ("finished", "not run"))
        suite = ET.SubElement(
            root, "testsuite", name=_clean(f"{run.framework} {run.version} {run.device}"),
            time=f"{run.seconds:.1f}",
            tests=str(len(run.results) + len(run.problems) + absent + unusable),
            failures=str(failures), errors=str(unusable),
            skipped=str(
                sum(r.status in ("not run", "not applicable", "gap") for r in run.results) + absent
            ),
        )  # fmt: skip
        for result in run.results:
            what = " in ".join(filter(None, (result.subject, result.way)))
            case = ET.SubElement(
                suite, "testcase", classname=_clean(f"{run.framework}.{run.device}.{result.check}"),
                name=_clean(f"{what} [{result.policy}]"), time=f"{result.seconds:.6f}",
            )  # fmt: skip
            if result.status in UNEXPECTED:
                ET.SubElement(case, "failure", type=result.status, message=_clean(result.message))
            elif result.status not in ("passed", "refused"):
                ET.SubElement(case, "skipped", message=_clean(result.reason or result.message))
        for problem in run.problems:
            case = ET.SubElement(
                suite, "testcase", classname=_clean(f"{run.framework}.gaps"), name=_clean(problem)
            )
            ET.SubElement(case, "failure", type="gap", message=_clean(problem))
        if absent:
            case = ET.SubElement(suite, "testcase", classname=_clean(run.framework), name="device")
            ET.SubElement(case, "skipped", message=_clean(f"there is no {run.device} here"))
        if unusable:
            case = ET.SubElement(suite, "testcase", classname=_clean(run.framework), name="process")
            ET.SubElement(case, "error", message=_clean(run.ended))
    ET.indent(root)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
