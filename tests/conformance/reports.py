"""Reports for tests of the page: one without a fault, one with every fault, one hostile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from unamp_conformance.results import FrameworkRun, Report, Result

HOST = {"python": "3.11.7", "system": "Linux", "processor": "a processor"}

#: Texts that would set `window.hacked`, leave their element, reach the page's own objects, or be
#: wider than any window.
HOSTILE = (
    "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"'&",
    "</script></style></title><svg onload=window.hacked=1>",
    "<!--<script>]]>\u2028{{7*7}}${7*7}",
    "__proto__",
    "javascript:window.hacked=1",
    "\u202ebackwards \x00 \ud800",
    "a_very_long_name_without_a_break_" * 20,
)

LOW = ("float16", "bfloat16")
NETWORKS = ("mlp", "transformer", "unet")
TRACE = (
    "linear: low, float32 float32 -> bfloat16 -> bfloat16",
    "softmax: low, bfloat16 -> bfloat16 -> bfloat16",
)


def network_results(status: str = "passed", size: float = 0.5) -> Iterator[Result]:
    for name in NETWORKS:
        for level in ("O0", "O1", "O2"):
            for dtype in LOW:
                for preset in ("unamp", "paddle"):
                    policy = f"{level} {dtype} {preset}"
                    yield Result(
                        "decisions", name, policy, "cpu", "passed", details={"trace": TRACE}
                    )
                    details = {
                        "error": 0.01 * size,
                        "bound": 0.01,
                        "worst": "output",
                        "sample": [1.0, 2.0],
                    }
                    yield Result("outputs", name, policy, "cpu", status, details=details)
    yield Result("behaviour", "nesting", "O1 bfloat16 unamp", "cpu", "passed")


def probes(count: int = 20) -> Iterator[Result]:
    for number in range(count):
        yield Result(
            "coverage", f"op_{number}", "-", "cpu", "passed", details={"sample": [1.0], "count": 1}
        )
        yield Result("probe", f"op_{number}", "allow bfloat16", "cpu", "passed")


def good() -> Report:
    runs = [
        run(name, *network_results(size=size), *probes())
        for name, size in (("torch", 0.2), ("paddle", 0.6))
    ]
    absent = FrameworkRun("torch", "2.13.0", "gpu", "not run")
    agreed = Result(
        "agreement",
        "mlp",
        "O1 bfloat16 unamp",
        "cpu",
        "passed",
        details={"error": 0.001, "bound": 0.01},
    )
    gap = Result(
        "probe",
        "op_3",
        "deny float16",
        "cpu",
        "gap",
        "computed in float16",
        "it is so https://example.org/why",
    )
    first = FrameworkRun("torch", "2.13.0", "cpu", "finished", (*runs[0].results, gap), (), 3.0)
    return report(first, absent, runs[1], run("paddle and torch", agreed))


#: One result of each kind of fault.
WRONG = (
    Result(
        "probe", "matmul", "deny bfloat16", "cpu", "failed",
        "float32 inputs, forward: computed in bfloat16",
        details={"rule": "float32", "seen": ["float32 inputs, forward: bfloat16, tag bfloat16"],
                 "wrong": [{"of": "float32 inputs, forward", "expected": "float32",
                            "observed": "bfloat16, tag bfloat16"}]},
    ),
    Result(
        "outputs", "transformer", "O1 bfloat16 apex", "cpu", "failed",
        "output: error 0.03, bound 0.01", details={"worst": "output", "error": 0.03, "bound": 0.01},
    ),
    Result(
        "decisions", "transformer", "O1 bfloat16 apex", "cpu", "passed", details={"trace": TRACE},
    ),
    Result(
        "outputs", "unet", "O2 float16 apex", "cpu", "failed", "output: error nan",
        details={"error": None, "bound": 0.01},
    ),
    Result(
        "outputs", "lstm", "O1 float16 unamp", "cpu", "crashed",
        "the framework's process died (signal SIGSEGV)",
    ),
    Result("outputs", "lstm", "O2 float16 unamp", "cpu", "hung", "not finished within 120 seconds"),
    Result(
        "probe", "add", "allow float16", "cpu", "fixed", "passes; take it out of the known gaps",
    ),
    Result("item", "lstm O3", "-", "cpu", "not run", "the framework's process kept ending early"),
    Result(
        "behaviour", "training", "O1 float16 unamp", "cpu", "failed", "boom",
        details={"traceback": ["Traceback", "boom"]},
    ),
)  # fmt: skip


def broken() -> Report:
    bad = FrameworkRun(
        "torch",
        "2.13.0",
        "cpu",
        "finished",
        (*network_results(), *WRONG),
        ("a gap matches no check",),
        3.0,
    )
    return report(
        bad, run("paddle", *network_results(), ended="given up: its process ended early 9 times")
    )


def hostile() -> Report:
    ends = ("finished", HOSTILE[0])
    runs = [
        FrameworkRun(name, name, name, ends[n % 2], tuple(_harm(name)), (name,), 1.0)
        for n, name in enumerate(HOSTILE)
    ]
    first = HOSTILE[0]
    return Report(
        first, first, dict.fromkeys(HOSTILE, first), {name: [name] for name in HOSTILE}, tuple(runs)
    )


def _harm(name: str) -> Iterator[Result]:
    trace = [name, f"{name}: low, float32 -> {name} -> {name}"]
    odd = {name: name, "list": [name, None], "trace": trace, "wrong": [{"of": name}, 3]}
    numbers = (
        {"error": 3.0, "bound": 2.0},
        {"error": name, "bound": 1},
        {"error": 1, "bound": 10**400},
    )
    kinds = product(
        ("decisions", "outputs", "probe", "coverage", "behaviour", name),
        ("passed", "failed", "gap", "not run", "hung"),
    )
    for n, (check, status) in enumerate(kinds):
        policy = (f"O1 {name}", name, "-")[n % 3]
        yield Result(
            check, name, policy, name, status, name, f"{name} https://{name}", odd | numbers[n % 3]
        )


def many(checks: int, failing: int) -> Report:
    """Return a report with many probes, some of which failed."""
    passed = [
        Result("probe", f"op_{n % 600}", f"O1 float16 preset_{n // 600}", "cpu", "passed")
        for n in range(checks)
    ]
    failed = [
        replace(WRONG[0], subject=result.subject, policy=result.policy)
        for result in passed[:failing]
    ]
    results = failed + passed[failing:]
    return report(run("torch", *results, *network_results()))


def run(framework: str, *results: Result, ended: str = "finished") -> FrameworkRun:
    return FrameworkRun(framework, "2.13.0", "cpu", ended, results, (), 3.0)


def report(*runs: FrameworkRun) -> Report:
    return Report("0.1.0", "2026-01-01T00:00:00+00:00", HOST, {"ops": [], "full": False}, runs)
