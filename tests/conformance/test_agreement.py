"""The suite compares frameworks with each other, and finds the one that deviates."""

from dataclasses import replace

import pytest
from pretenders import Confused
from unamp_conformance.check import agreement
from unamp_conformance.check.cases import cases
from unamp_conformance.check.probes import Probe
from unamp_conformance.report import summary
from unamp_conformance.report.compare import of_devices
from unamp_conformance.report.html import render
from unamp_conformance.results import FrameworkRun, Report, Result
from unamp_conformance.run import runner
from unamp_conformance.run.plan import Selection, items
from unamp_torch.conformance.operations import TorchOperations

TRACE = [
    "linear: low, float32 float32 float32 -> bfloat16 -> bfloat16",
    "softmax: float32, bfloat16 -> float32 -> float32",
]
SAMPLE = [1.0, -2.0, 0.5, 4.0]


def ran(
    framework,
    *,
    policy="O1 bfloat16 unamp",
    sample=SAMPLE,
    trace=TRACE,
    device="cpu",
    status="passed",
):
    details = {"error": 0.001, "bound": 0.1, "output bound": 0.02, "sample": sample}
    found = (
        Result("decisions", "mlp", policy, device, "passed", details={"trace": trace}),
        Result("outputs", "mlp", policy, device, status, details=details),
        Result("gradients", "mlp", policy, device, "passed"),
    )
    return FrameworkRun(framework, "1.0", device, "finished", found)


def scaled(factor):
    return [factor * value for value in SAMPLE]


def compared(first, second):
    (run,) = agreement.pairs([first, second])
    (result,) = run.results
    return result


def test_those_that_agree_pass():
    result = compared(ran("torch"), ran("paddle", sample=scaled(1.005)))
    assert (result.check, result.subject, result.status) == ("agreement", "mlp", "passed")
    assert result.details["bound"] == 0.02


@pytest.mark.parametrize(
    ("policy", "factor", "status"),
    [
        ("O0 bfloat16 unamp", 1 + 5e-6, "passed"),
        ("O0 bfloat16 unamp", 1 + 5e-5, "failed"),
        ("O1 bfloat16 unamp", 1.01, "passed"),
        ("O1 bfloat16 unamp", 1.03, "failed"),
    ],
)
def test_numbers_are_held_to_the_bound_of_the_dtype(policy, factor, status):
    result = compared(
        ran("torch", policy=policy), ran("paddle", policy=policy, sample=scaled(factor))
    )
    assert result.status == status
    assert ("apart" in result.message) == (status == "failed")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("softmax: low, bfloat16 -> bfloat16 -> bfloat16", "low -> bfloat16 on paddle"),
        ("softmax: float32, bfloat16 -> float32 -> bfloat16", "float32 -> bfloat16 on paddle"),
    ],
)
def test_another_decision_is_a_failure(line, says):
    result = compared(ran("torch"), ran("paddle", trace=[TRACE[0], line]))
    assert result.status == "failed"
    assert result.message == f"softmax is float32 -> float32 on torch, {says}"


def test_other_inputs_of_an_operation_are_no_other_decision():
    assert (
        compared(
            ran("torch"), ran("paddle", trace=["linear: low, float32 -> bfloat16 -> bfloat16"])
        ).status
        == "passed"
    )


def test_an_output_of_another_length_is_a_failure():
    assert compared(ran("torch"), ran("paddle", sample=SAMPLE[:2])).status == "failed"


def test_what_one_of_them_got_wrong_already_is_not_compared():
    result = compared(ran("torch"), ran("paddle", status="gap", sample=scaled(9)))
    assert result.status == "not run"
    assert "outputs: gap" in result.message


def test_what_neither_tells_is_not_compared():
    first, second = (
        replace(run, results=run.results[1:2])
        for run in (ran("torch", sample=[]), ran("paddle", sample=[]))
    )
    assert compared(first, second).status == "not run"


def test_native_means_other_lists_on_every_framework():
    assert agreement.pairs([ran(f, policy="O1 bfloat16 native") for f in ("torch", "paddle")]) == ()


def test_every_two_frameworks_on_one_device_are_compared():
    runs = [ran(f) for f in ("torch", "paddle", "mindspore", "tensorflow")]
    found = agreement.pairs(runs)
    assert len(found) == 6
    assert {run.framework for run in found} >= {"torch and paddle", "mindspore and tensorflow"}
    assert all(run.device == "cpu" for run in found)


def test_the_devices_of_a_framework_are_compared_too():
    other = ran(
        "torch", device="second", trace=[TRACE[0], "softmax: low, bfloat16 -> bfloat16 -> bfloat16"]
    )
    (run,) = agreement.pairs([ran("torch"), other, ran("paddle", device="gpu")])
    assert (run.framework, run.device, run.ok) == ("torch and torch", "cpu and second", False)
    assert (
        run.results[0].message == "softmax is float32 -> float32 on cpu, low -> bfloat16 on second"
    )
    (comparison,) = of_devices(Report("1", "", {}, {}, (ran("torch"), other, run)))
    assert len(comparison.decisions) == 1


def test_two_devices_in_one_run(monkeypatch):
    """Run PyTorch's second device in a process of its own, and compare it with the CPU.

    It is used on machines without a GPU.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    asked = Selection(
        networks=("lstm",),
        ops=("softmax",),
        levels=("O1",),
        dtypes=("bfloat16",),
        presets=("unamp",),
    )
    report = runner.run(["torch"], ["cpu", "gpu", "second"], asked, runner.Options(jobs=2))
    ended = {run.device: run.ended for run in report.runs}
    assert ended["second"] == ended["cpu and second"] == "finished"
    assert report.ok
    assert "One framework on two devices" in render(report)


def test_one_that_deviates_fails_the_whole_run(monkeypatch):
    """The frameworks' own checks all pass; only the comparison shows the defect."""
    deviating = ran("paddle", trace=[TRACE[0], "softmax: low, bfloat16 -> bfloat16 -> bfloat16"])
    found = {"torch": ran("torch"), "paddle": deviating, "mindspore": ran("mindspore")}
    monkeypatch.setattr(
        runner, "_runs", lambda subjects, *_: [found[framework] for framework, _ in subjects]
    )
    report = runner.run(list(found), ["cpu"], Selection())
    assert all(run.ok for run in report.runs if run.framework in found)
    assert [run.framework for run in report.runs if not run.ok] == [
        "torch and paddle",
        "paddle and mindspore",
    ]
    assert not report.ok
    assert "softmax is float32 -&gt; float32 on torch, low -&gt; bfloat16 on paddle" in render(
        report
    )
    alone = runner.run(list(found), ["cpu"], Selection(checks=("outputs",)))
    assert [run.framework for run in alone.runs] == list(found)


def test_asking_for_agreement_runs_what_it_needs():
    found = list(items(Selection(checks=("agreement",), networks=("mlp",)), ["add"]))
    assert {check for item in found for check in item.checks} == set(agreement.NEEDED)


def test_frameworks_that_ran_nothing_are_not_compared():
    absent = replace(ran("paddle"), ended="not run", results=())
    assert agreement.pairs([ran("torch"), absent]) == ()


def looked_at(framework, op, details, status="passed"):
    version = {"tensorflow": "2.21.0", "mindspore": "2.10.0"}.get(framework, "1.0")
    return FrameworkRun(
        framework,
        version,
        "cpu",
        "finished",
        (Result("coverage", op, "-", "cpu", status, details=details),),
    )


def sampled(op, operations):
    return Probe(cases()[op], operations).sample()


@pytest.mark.parametrize("op", ["sub", "pixel_shuffle", "sum", "std", "leaky_relu"])
def test_an_operation_that_is_bound_to_another_function_is_a_failure(op):
    right, wrong = (
        looked_at("torch", op, sampled(op, made)) for made in (TorchOperations(), Confused())
    )
    assert compared(right, replace(right, framework="paddle")).status == "passed"
    found = compared(right, replace(wrong, framework="paddle"))
    assert (found.check, found.subject, found.status) == ("agreement", op, "failed")


def test_an_operation_that_gives_more_numbers_is_a_failure():
    found = compared(
        looked_at("torch", "sum", {"count": 8, "sample": SAMPLE}),
        looked_at("paddle", "sum", {"count": 4, "sample": SAMPLE}),
    )
    assert (found.status, found.message) == ("failed", "8 numbers on torch, 4 on paddle")


def test_an_operation_of_which_too_few_numbers_are_told_is_not_compared():
    found = compared(
        *(
            looked_at(f, "sum", {"count": 4, "sample": SAMPLE[:n]})
            for f, n in (("torch", 4), ("paddle", 0))
        )
    )
    assert found.status == "not run"


def test_numbers_that_are_none_are_no_agreement():
    found = compared(
        *(looked_at(f, "sum", {"count": 1, "sample": [float("nan")]}) for f in ("torch", "paddle"))
    )
    assert found.status == "failed"


@pytest.mark.parametrize("op", ["rand", "empty", "bernoulli", "linalg_eig"])
def test_what_is_random_or_one_of_several_answers_is_not_compared(op):
    found = looked_at("torch", op, sampled(op, TorchOperations()))
    assert agreement.pairs([found, replace(found, framework="paddle")]) == ()


def test_an_operation_whose_example_call_fails_is_not_compared():
    details = {"count": 4, "sample": SAMPLE}
    assert (
        agreement.pairs(
            [looked_at("torch", "sum", details), looked_at("paddle", "sum", details, status="gap")]
        )
        == ()
    )


@pytest.mark.parametrize(("factor", "status"), [(2.0, "gap"), (1.0, "fixed")])
def test_another_function_that_is_known_is_a_gap_and_must_be_one(factor, status):
    first = looked_at("torch", "unique", {"count": 4, "sample": SAMPLE})
    second = looked_at("tensorflow", "unique", {"count": 4, "sample": scaled(factor)})
    assert compared(first, second).status == status


def test_two_that_are_both_known_to_differ_are_not_compared():
    details = {"count": 4, "sample": SAMPLE}
    assert (
        agreement.pairs([looked_at(f, "unique", details) for f in ("tensorflow", "mindspore")])
        == ()
    )


def test_operations_that_were_compared_are_shown_as_operations():
    details = {"count": 4, "sample": SAMPLE}
    (run,) = agreement.pairs([looked_at(f, "sum", details) for f in ("torch", "paddle")])
    assert (list(summary.matrix(run).rows), list(summary.operations(run))) == ([], ["sum"])


def test_asking_for_agreement_looks_at_operations_without_probing_them():
    (found,) = items(Selection(checks=("agreement",), ops=("add",)), ["add"])
    assert found.checks == agreement.NEEDED_OF_OPERATIONS
