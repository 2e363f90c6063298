"""A known gap covers its own failures alone, and one that passes is an error."""

import pytest
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.gaps import BadGaps, apply, gaps_of, parse
from unamp_conformance.results import Result
from unamp_conformance.run.plan import LISTED, Selection, full_items

TEXT = """
[[gap]]
check = "probe"
subjects = ["fft_*"]
policies = ["allow *"]
reason = "no kernel"
link = "https://example.org/1"
versions = ">=2.6,<3"
"""


def result(subject="fft_fft", policy="allow float16", status="failed", check="probe"):
    return Result(check, subject, policy, "cpu", status)


def test_a_failure_of_a_gap_is_expected():
    (marked,), problems = apply(parse(TEXT, "t"), [result()], "2.13.0+cpu", {}, whole=True)
    assert (marked.status, marked.reason) == ("gap", "no kernel https://example.org/1")
    assert problems == ()


def test_a_gap_that_passes_is_an_error():
    (marked,), _ = apply(parse(TEXT, "t"), [result(status="passed")], "2.13.0", {}, whole=True)
    assert marked.status == "fixed"


@pytest.mark.parametrize(
    "other", [result("matmul"), result(policy="deny float16"), result(check="coverage")]
)
def test_a_gap_covers_only_what_it_says(other):
    (marked, _), _ = apply(parse(TEXT, "t"), [other, result()], "2.13.0", {}, whole=True)
    assert marked.status == "failed"


def test_a_gap_of_what_only_a_full_run_checks_is_not_useless():
    assert (
        apply(
            parse(TEXT, "t"),
            [result("matmul")],
            "2.13.0",
            {},
            whole=True,
            others=lambda: [result()],
        )[1]
        == ()
    )


def test_a_gap_of_what_only_a_run_of_one_preset_checks_is_not_useless():
    """A full run takes the presets in turn: one way meets another preset at each level."""
    checks = {
        (item.subject, policy)
        for item in full_items(Selection(), [], ["vmap"])
        for policy in item.policies
    }
    assert {(name, f"O1 bfloat16 {preset}") for name in NETWORKS for preset in LISTED} <= checks


def test_a_gap_of_another_device_is_not_useless():
    elsewhere = parse(TEXT + 'devices = ["gpu"]\n', "t")
    assert apply(elsewhere, [result("matmul")], "2.13.0", {}, whole=True)[1] == ()
    assert apply(elsewhere, [result()], "2.13.0", {}, whole=True)[0][0].status == "failed"


def test_a_gap_that_matches_nothing_is_an_error_in_a_whole_run():
    assert apply(parse(TEXT, "t"), [result("matmul")], "2.13.0", {}, whole=True)[1] == (
        "the known gap probe fft_* matches no check",
    )
    assert apply(parse(TEXT, "t"), [result("matmul")], "2.13.0", {}, whole=False)[1] == ()


@pytest.mark.parametrize(
    ("version", "status"),
    [("2.6", "gap"), ("2.5.1", "failed"), ("3.0.0", "failed"), ("2.13.0a0+git", "gap")],
)
def test_a_gap_is_of_some_versions(version, status):
    assert apply(parse(TEXT, "t"), [result()], version, {}, whole=False)[0][0].status == status


@pytest.mark.parametrize(
    ("where", "facts", "status"),
    [
        ("{onednn = false}", {"onednn": False}, "gap"),
        ("{onednn = false}", {"onednn": True}, "failed"),
        ("{avx512_bf16 = true}", {"avx512_bf16": False}, "failed"),
        ("{avx512_bf16 = true}", {}, "failed"),  # a system that does not know
        ('{capability = ["AVX2", "DEFAULT"]}', {"capability": "DEFAULT"}, "gap"),
        ('{capability = ["AVX2", "DEFAULT"]}', {"capability": "AVX512"}, "failed"),
        ("{threads = 1}", {"threads": 1}, "gap"),
        ("{threads = 1}", {"threads": True}, "failed"),  # not a number
        ('{threads = ">=2"}', {"threads": 16}, "gap"),
        ('{threads = ">=2"}', {"threads": 1}, "failed"),
        ('{onednn = true, capability = "AVX2"}', {"onednn": True, "capability": "AVX2"}, "gap"),
        (
            '{onednn = true, capability = "AVX2"}',
            {"onednn": True, "capability": "AVX512"},
            "failed",
        ),
    ],
)
def test_a_gap_is_of_some_machines(where, facts, status):
    (marked,), problems = apply(
        parse(f"{TEXT}where = {where}", "t"), [result()], "2.13.0", facts, whole=False
    )
    assert (marked.status, problems) == (status, ())


def test_a_gap_of_this_machine_that_passes_is_an_error():
    gaps = parse(f"{TEXT}where = {{onednn = false}}", "t")
    for onednn, status in ((False, "fixed"), (True, "passed")):
        (marked,), _ = apply(
            gaps, [result(status="passed")], "2.13.0", {"onednn": onednn}, whole=True
        )
        assert marked.status == status


def test_a_gap_that_asks_for_what_nobody_tells_is_an_error():
    gaps = parse(f"{TEXT}where = {{onednn_bf17 = false}}", "t")
    (marked,), (problem,) = apply(
        gaps, [result()], "2.13.0", {"onednn_bfloat16": False}, whole=False
    )
    assert marked.status == "failed"
    assert problem.startswith(
        "the known gap probe fft_* asks for 'onednn_bf17'; known are amx_bf16, "
    )
    assert "onednn_bfloat16" in problem
    # another version may know this fact
    assert apply(gaps, [result()], "3.1", {"threads": 1}, whole=False)[1] == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('reason = "no kernel"', ""), "needs 'reason'"),
        (('link = "https://example.org/1"', ""), "needs 'link'"),
        (('versions = ">=2.6,<3"', 'versions = "new"'), "is no range"),
        (("check =", "checks ="), "unknown key 'checks'"),
        (("[[gap]]", "[[gap"), "t: "),
        (
            ("versions = ", 'where = "avx2"\nversions = '),
            "where must be a table such as {onednn = false}, not 'avx2'",
        ),
        (
            ("versions = ", "where = {avx = 0.5}\nversions = "),
            "where, avx: 0.5 is no boolean, number, text or list of them",
        ),
        (("versions = ", "where = {avx = [{}]}\nversions = "), "where, avx: .* is no boolean"),
        (
            ('subjects = ["fft_*"]', 'subjects = "fft_*"'),
            "subjects must be a list of texts such as .*, not 'fft_.'",
        ),
        (
            ('policies = ["allow *"]', "policies = [1]"),
            r"policies must be a list of texts such as .*, not \[1\]",
        ),
        (('versions = ">=2.6,<3"', "versions = 2.6"), "versions must be text, not 2.6"),
        (('reason = "no kernel"', 'reason = ["no kernel"]'), "reason must be text, not"),
    ],
)
def test_a_wrong_file_is_refused(change, message):
    with pytest.raises(BadGaps, match=message):
        parse(TEXT.replace(*change), "t")


def test_a_gap_has_from_the_defaults_what_it_does_not_say():
    defaults = '[defaults]\nlink = "https://example.org/2"\ndevices = ["gpu"]\n'
    (said,) = parse(defaults + TEXT, "t")
    (left_out,) = parse(defaults + TEXT.replace('link = "https://example.org/1"', ""), "t")
    assert (said.link, left_out.link) == ("https://example.org/1", "https://example.org/2")
    assert said.devices == left_out.devices == ("gpu",)


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ("defaults = 1", "t: defaults must be a table, not 1"),
        ("[defaults]\nlinks = 'here'", "unknown key 'links'"),
        ("[defaults]\ndevices = 'cpu'", "devices must be a list of texts"),
    ],
)
def test_wrong_defaults_are_refused(defaults, message):
    with pytest.raises(BadGaps, match=message):
        parse(f"{defaults}\n{TEXT}", "t")


def test_the_file_of_torch_is_right():
    assert all(gap.reason for gap in gaps_of("torch"))


def test_no_file_is_no_gap():
    assert gaps_of("nothing") == ()
