"""`unamp migrate` changes no file without `--write`.

An error in one file is reported, and the others are migrated.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from commanded import invoke
from elsewhere import ended, python

from unamp.migrate import files, migrate_paths
from unamp.migrate.sarif import as_sarif

OLD = "import torch\nwith torch.autocast('cuda'):\n    pass\n"
NEW = "import torch\nimport unamp\nwith unamp.autocast('cuda', preset=\"torch-cuda\"):\n    pass\n"
BY_HAND = "from apex import amp\nmodel = amp.initialize(model)\n"


def run(*arguments: object, code: int) -> Any:
    done = invoke("migrate", *arguments, COLUMNS="300")
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(OLD)
    return path


def test_nothing_is_touched_without_write(script: Path) -> None:
    before = script.stat().st_mtime_ns, script.stat().st_ino
    done = run(script, code=1)
    assert script.read_text() == OLD
    assert (script.stat().st_mtime_ns, script.stat().st_ino) == before
    where = (
        f"{script}:2:6: moved: torch.autocast('cuda') -> "
        "unamp.autocast('cuda', preset=\"torch-cuda\")"
    )
    assert done.stdout.splitlines() == [
        where,
        "1 file read: 1 moved; 1 would change, which --write does",
    ]


def test_write_writes_and_a_second_time_there_is_nothing(script: Path) -> None:
    script.chmod(0o640)
    assert "1 written" in run(script, "--write", code=0).stdout
    assert script.read_text() == NEW
    assert stat.S_IMODE(script.stat().st_mode) == 0o640
    assert run(script, "--write", code=0).stdout == "1 file read: nothing found\n"
    assert [path.name for path in script.parent.iterdir()] == ["script.py"]


def test_what_stays_is_exit_code_1_with_write_too(script: Path) -> None:
    script.write_text(BY_HAND)
    assert "by hand: amp.initialize(model)" in run(script, "--write", code=1).stdout
    assert script.read_text() == BY_HAND


def test_diff_is_a_diff_and_what_stays_is_said_beside(script: Path) -> None:
    script.write_text(OLD + BY_HAND)
    done = run(script, "--diff", code=1)
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"--- {script}", f"+++ {script}"]
    assert "+import unamp" in lines
    assert "by hand" not in done.stdout
    assert f"{script}:5:9: by hand: amp.initialize(model)" in done.stderr


def test_diff_of_a_file_without_a_last_line_end(script: Path) -> None:
    script.write_text("import torch\nr = torch.autocast('cpu')")
    text = run(script, "--diff", code=1).stdout
    assert text.endswith(
        "+r = unamp.autocast('cpu', preset=\"torch-cpu\")\n\\ No newline at end of file\n"
    )


def test_to_and_from(script: Path) -> None:
    assert (
        "unamp.dialects.torch.autocast" in run(script, "--diff", "--to", "dialects", code=1).stdout
    )
    assert run(script, "--from", "paddle,keras", code=0).stdout == "1 file read: nothing found\n"
    assert "1 moved" in run(script, "--from", "pytorch", code=1).stdout
    assert (
        "unknown framework 'caffe'; valid: torch, apex"
        in run(script, "--from", "caffe", code=2).output
    )


def test_json(script: Path) -> None:
    data = json.loads(run(script, "--json", code=1).stdout)
    assert (data["files"], data["changed"], data["written"], data["errors"]) == (
        1,
        [str(script)],
        False,
        [],
    )
    (found,) = data["findings"]
    assert (found["file"], found["line"], found["column"], found["kind"]) == (
        str(script),
        2,
        6,
        "moved",
    )
    assert found["framework"] == "torch"


def test_sarif_has_what_2_1_0_asks_for(script: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import torch\ntorch.autocast(\n")
    script.write_text(OLD + BY_HAND + "model.half()\n")
    out = tmp_path / "out.sarif"
    run(tmp_path, "--sarif", out, code=2)
    log = json.loads(out.read_text())
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("/sarif-schema-2.1.0.json")
    (ran,) = log["runs"]
    rules = ran["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert [result["ruleId"] for result in ran["results"]] == ["moved", "by-hand", "cast-by-hand"]
    for result in ran["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uri"] == script.as_uri()
        assert place["region"]["startLine"] >= 1
        assert place["region"]["startColumn"] >= 1
    (invocation,) = ran["invocations"]
    assert invocation["executionSuccessful"] is False
    assert "broken.py" in invocation["toolExecutionNotifications"][0]["message"]["text"]


def test_policies_are_printed_and_stay_when_a_file_is_migrated(script: Path) -> None:
    script.write_text(
        "import paddle\nimport torch\n"
        "with torch.autocast('cuda', dtype=torch.bfloat16, enabled=on):\n    pass\n"
        "with paddle.amp.auto_cast(level='O2', custom_black_list=['conv2d']):\n    pass\n"
    )
    lines = run(script, "--policy", "preset", code=1).stdout.splitlines()
    assert lines[0].startswith(
        f"{script}:3: Policy('O1', 'bfloat16', preset='torch-cuda'); only a run knows enabled=on"
    )
    assert lines[1].startswith(
        f"{script}:5: Policy('O2', 'float16', deny=('conv2d',), preset='paddle', promote=True)"
    )
    assert lines[2] == "1 files read: 2 regions, 2 policies"
    before = [
        each["policy"]
        for each in json.loads(run(script, "--policy", "preset", "--json", code=1).stdout)[
            "regions"
        ]
    ]
    for to in ("dialects", "unamp"):
        run(script, "--write", "--to", to, code=0)
        data = json.loads(run(script, "--policy", "preset", "--json", code=1).stdout)
        assert [each["policy"] for each in data["regions"]] == before
    assert "operations" not in lines[0]
    assert "float32" in run(script, "--policy", "rules", code=1).stdout
    assert "run one after the other" in run(script, "--policy", "rules", "--write", code=2).output


def test_bad_files_are_named_and_the_others_are_done(tmp_path: Path) -> None:
    (tmp_path / "a_broken.py").write_text("import torch\nwith torch.autocast('cuda'\n")
    (tmp_path / "b_bytes.py").write_bytes(b"import torch\nx = '\xff'\ntorch.autocast('cuda')\n")
    (tmp_path / "c_coding.py").write_bytes(
        b"# coding: no-such\nimport torch\ntorch.autocast('cuda')\n"
    )
    (tmp_path / "c_rot13.py").write_bytes(
        b"# coding: rot13\nimport torch\ntorch.autocast('cuda')\n"
    )
    (tmp_path / "d_circle.py").symlink_to(tmp_path / "e_circle.py")
    (tmp_path / "e_circle.py").symlink_to(tmp_path / "d_circle.py")
    (tmp_path / "f_gone.py").symlink_to(tmp_path / "nowhere.py")
    good = tmp_path / "z_good.py"
    good.write_text(OLD)
    (tmp_path / "loop").symlink_to(tmp_path)
    done = run(tmp_path, tmp_path / "absent.py", "--write", code=2)
    assert good.read_text() == NEW
    said = done.stderr.splitlines()
    for name, words in {
        "a_broken": "it is no Python",
        "b_bytes": "it is not utf-8",
        "c_coding": "unknown encoding",
        "c_rot13": "its encoding, rot13, is none of text",
        "d_circle": "",
        "e_circle": "",
        "f_gone": "No such file",
        "absent": "No such file",
    }.items():
        assert any(f"{name}.py: error: " in line and words in line for line in said), (name, said)
    assert len(said) == 8
    data = json.loads(run(tmp_path, "--json", code=2).stdout)
    assert len(data["errors"]) == 7


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in a folder here")
def test_a_pipe_in_a_folder_is_not_waited_for(script: Path) -> None:
    os.mkfifo(script.with_name("pipe.py"))
    assert run(script.parent, code=1).stdout.splitlines()[-1].startswith("1 file read: 1 moved")


def test_names_and_strings_are_told_as_what_a_terminal_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = tmp_path / os.fsdecode(b"\x1b[31m\xff.py")
    strange.write_text(
        "import torch\nwith torch.autocast('cuda', dtype='\x1b]0;title\x07'):\n    pass\n"
    )
    (tmp_path / "broken\x1b.py").write_text("import torch\nwith torch.autocast('cuda'\n")
    sarif = tmp_path / "found.sarif"
    done = run(tmp_path, "--sarif", sarif, code=2)
    assert "\x1b" not in done.output
    assert (
        r"\x1b[31m\udcff.py:2:6: by hand: torch.autocast('cuda', dtype='\x1b]0;title\x07')"
        in done.stdout
    )
    assert r"broken\x1b.py: error: it is no Python" in done.stderr
    assert json.loads(sarif.read_text())["runs"][0]["results"]
    monkeypatch.chdir(tmp_path)
    report = migrate_paths([Path(strange.name)])
    (found,) = as_sarif(report)["runs"][0]["results"]
    assert found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "%1B%5B31m%FF.py"


def test_a_read_only_file_is_named_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, good = tmp_path / "a.py", tmp_path / "b.py"
    script.write_text(OLD)
    good.write_text(OLD)
    script.chmod(0o444)
    if os.access(script, os.W_OK):  # root may write every file
        access = os.access
        monkeypatch.setattr(
            files.os, "access", lambda path, mode: Path(path) != script and access(path, mode)
        )
    assert "a.py: error: it is read-only" in run(tmp_path, "--write", code=2).stderr
    assert script.read_text() == OLD
    assert good.read_text() == NEW


def test_a_file_that_changes_meanwhile_is_left(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate = files.migrate_source

    def meanwhile(text: str, *rest: Any) -> Any:
        script.write_text("mine = 1\n")
        return migrate(text, *rest)

    monkeypatch.setattr(files, "migrate_source", meanwhile)
    assert "it has changed since it was read" in run(script, "--write", code=2).stderr
    assert script.read_text() == "mine = 1\n"


def test_a_file_that_goes_meanwhile_is_named(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate = files.migrate_source

    def meanwhile(text: str, *rest: Any) -> Any:
        script.unlink()
        return migrate(text, *rest)

    monkeypatch.setattr(files, "migrate_source", meanwhile)
    assert "No such file" in run(script, "--write", code=2).stderr


def test_a_file_is_migrated_once_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real.txt"
    real.write_text(OLD)
    link = tmp_path / "link.py"
    link.symlink_to(real)
    assert run(tmp_path, link, real, "--write", code=0).stdout.startswith(f"{link}:2:6: moved")
    assert link.is_symlink()
    assert real.read_text() == NEW


@pytest.mark.parametrize(("module", "package"), [("libcst", "libcst"), ("yaml", "PyYAML")])
def test_without_what_it_needs_the_command_says_what_to_install_and_unamp_does_not_import_it(
    script: Path, module: str, package: str
) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None; "
        f"sys.argv = ['unamp', 'migrate', {str(script)!r}]; "
    )
    code += "from unamp.cli import main; main()"
    done = ended("-c", code)
    assert done.code == 2
    assert done.stderr == (
        f"`unamp migrate` needs {package}, which is not installed; pip install 'unamp[migrate]'\n"
    )
    code = f"import sys, unamp, unamp.cli.commands; assert {module!r} not in sys.modules"
    python("-c", code)
