"""The code in the guide for adapters runs as it is written."""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest
from unamp_conformance.reading import load

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.M | re.S)

USED = """
try:
    unamp.autocast(framework="toy")
except unamp.AdapterError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a folder with the guide's files, installed as a distribution."""
    folder = tmp_path_factory.mktemp("guide")
    for name, text in BLOCK.findall((ROOT / "docs/adapter.md").read_text("utf-8")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    site = folder / "site"
    install = [
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(site),
        str(folder),
    ]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
    (folder / "toy.py").unlink()  # so that the installed files are tested
    shutil.rmtree(folder / "unamp_toy")
    return folder


@pytest.fixture(scope="module")
def run(written):
    def started(*arguments, code=0):
        environment = {**os.environ, "PYTHONPATH": str(written / "site")}
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=written, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return started


def plugin(run, written, *arguments, code=0):
    """Return the numbers of tests by outcome."""
    options = (
        "--pyargs unamp_conformance --unamp-framework=toy --junitxml=j.xml -p no:cacheprovider"
    ).split()
    run("-m", "pytest", *options, *arguments, code=code)
    suite = ET.parse(written / "j.xml").getroot()[0]
    return {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}


def test_the_example_works(run):
    assert "matmul" in run("example.py")


def test_the_adapter_conforms(run, written):
    counts = plugin(run, written, "--unamp-check=coverage", "--unamp-check=probe")
    assert counts.pop("tests") > 50
    assert set(counts.values()) == {0}


def test_regions_behave(run, written):
    counts = plugin(
        run, written, "--unamp-check=behaviour", "-k", "nesting or exceptions or threads"
    )
    assert counts == {"tests": 6, "failures": 0, "errors": 0, "skipped": 0}


def test_the_command_knows_it(run):
    assert '"ok": true' in run(
        *"-m unamp conformance --framework toy --device cpu --op exp --op matmul --json".split(),
    )


def test_what_it_has_no_operations_for_is_not_applicable(run, written):
    run(
        *"-m unamp conformance --framework toy --device cpu --output out".split(),
        code=0,
    )
    (ran,) = load(written / "out/results.json").runs
    counts = Counter(result.status for result in ran.results)
    assert set(counts) == {"passed", "not applicable"}
    lacking = [result for result in ran.results if result.status == "not applicable"]
    assert {result.message for result in lacking if result.subject == "mlp"} == {
        "toy has no operation relu"
    }
    assert {result.check for result in lacking}.isdisjoint({"coverage", "probe"})


def test_its_spellings_are_understood_before_the_framework_is_imported(run):
    assert "toy" in run("-m", "unamp", "ops", "toy.add")
    code = """
import sys, unamp
policy = unamp.Policy(deny=["toy.exp", "toy.matmul"])
assert policy.deny == ("exp", "matmul") and "toy" not in sys.modules
import toy
assert unamp.Policy(deny=toy.mul).deny == ("mul",)
"""
    run("-c", code)


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        (
            'add    = ["add"]',
            'addd = ["add"]',
            "line 6: unknown operation 'addd'; did you mean 'add'",
        ),
        ('mul    = ["mul"]', 'mul = ["add"]', "line 7: 'add' is spelled for 'add' already"),
        ('mul    = ["mul"]', "mul = 3", "line 7: mul must be a list of spellings"),
        ('version   = "1.0"', "version = 1", "line 2: version must be a string"),
        (
            'framework = "toy"',
            'framework = "boy"',
            "line 1: it is for 'boy', and the adapter is 'toy''s",
        ),
        ("[spellings]", "[spelling]", "line 5: unknown key 'spelling'"),
        ("[spellings]", "[spellings", "spellings.toml: "),
    ],
)
def test_bad_spellings_are_named_by_file_and_line(run, written, line, instead, message):
    file = written / "site/unamp_toy/data/spellings.toml"
    text = file.read_text()
    try:
        file.write_text(text.replace(line, instead))
        said = run(
            "-c",
            "import toy, unamp\ntry:\n unamp.autocast(framework='toy')\n"
            "except unamp.AdapterError as e:\n print(e)",
        )
        # programs without the framework go on
        run("-c", "import unamp\nunamp.Policy(deny='torch.add')")
    finally:
        file.write_text(text)
    assert str(file) in said
    assert message in said


def test_an_operation_that_is_forgotten_fails_by_name(run, written):
    adapter = written / "site/unamp_toy/__init__.py"
    text = adapter.read_text()
    try:
        adapter.write_text(text.replace("for op in OPS]", 'for op in OPS if op != "exp"]'))
        counts = plugin(
            run, written, "--unamp-check=probe", "--unamp-op=exp", "--unamp-op=add", code=1
        )
        failed = [
            case.get("name") for case in ET.parse(written / "j.xml").iter("testcase") if len(case)
        ]
    finally:
        adapter.write_text(text)
    assert counts["failures"] == len(failed) > 0
    assert all("probe-exp-" in name for name in failed)


def test_its_own_known_gaps_are_expected_to_fail(run, written):
    gap = """[[gap]]
check = "probe"
subjects = ["exp"]
policies = ["allow *", "deny *"]
reason = "a gap for the sake of the test"
link = "docs/adapter.md"
versions = ">=1,<2"
"""
    (written / "site/unamp_toy/gaps.toml").write_text(gap)
    try:
        counts = plugin(run, written, "--unamp-check=probe", "--unamp-op=exp", code=1)
    finally:
        (written / "site/unamp_toy/gaps.toml").unlink()
    assert counts["failures"] == 4  # the probes pass: a gap that does not exist is an error
