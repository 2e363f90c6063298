"""Cells of a notebook are migrated as one script; everything else stays as it is.

A notebook that cannot be read is reported in a line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commanded import invoke
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unamp.migrate import migrate_paths

OLD = ["import torch\n", "from torch.cuda.amp import GradScaler"]
STEP = ["with torch.autocast('cuda'):\n", "    loss = model(x)"]


def run(*arguments: object, code: int) -> Any:
    done = invoke("migrate", *arguments, COLUMNS="300")
    assert done.exit_code == code, done.output
    return done


def code(source: object) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": source,
    }


def notebook(*cells: object, **metadata: object) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "training.ipynb"


@pytest.mark.parametrize("indent", [None, 1, "\t"])
@pytest.mark.parametrize("whole", [False, True])
def test_cells_are_one_script_and_all_else_stays_to_the_letter(
    path: Path, indent: Any, whole: bool
) -> None:
    def source(lines: list[str]) -> object:
        return "".join(lines) if whole else lines

    def made(first: list[str], second: list[str], third: list[str]) -> str:
        cells = [
            {"cell_type": "markdown", "metadata": {}, "source": ["torch.autocast(é)\n"]},
            code(source(first)),
            code(source(["%matplotlib inline\n", "if x:\n", "    !pip install torch\n", "model?"])),
            {
                **code(source(second)),
                "outputs": [{"data": {"torch.autocast('cuda')": [1.50, 1e3]}}],
            },
            code(source(["%%bash\n", "echo autocast $("])),
            code(source(third)),
        ]
        return json.dumps(notebook(*cells), indent=indent, ensure_ascii=False) + "\n"

    path.write_text(made(OLD, STEP, ["%%time\n", "scaler = GradScaler()"]), "utf-8")
    said = run(path, "--write", code=0).stdout
    assert f"{path}:cell 4:1:6: moved: torch.autocast('cuda')" in said
    assert f"{path}:cell 6:2:10: moved: GradScaler()" in said
    new = ["with unamp.autocast('cuda', preset=\"torch-cuda\"):\n", "    loss = model(x)"]
    expected = made(
        ["import torch\n", "import unamp"], new, ["%%time\n", "scaler = unamp.GradScaler()"]
    )
    assert path.read_text("utf-8") == expected
    assert run(path, "--write", code=0).stdout == "1 file read: nothing found\n"


def test_policies_and_sarif_name_the_cell(path: Path, tmp_path: Path) -> None:
    path.write_text(json.dumps(notebook(code(OLD), code(["x = 1\n", *STEP]))))
    assert run(path, "--policy", "preset", code=1).stdout.startswith(
        f"{path}:cell 2:2: Policy('O1'"
    )
    run(path, "--sarif", tmp_path / "found.sarif", code=1)
    results = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
    assert any(each["message"]["text"].startswith("cell 2, line 2: moved") for each in results)
    assert all(
        each["locations"][0]["physicalLocation"]["region"]["startLine"] >= 1 for each in results
    )


def test_cells_await_and_may_be_none(path: Path) -> None:
    path.write_text(
        json.dumps(
            notebook(
                code(OLD), code("await go()"), code([]), {**code(""), "source": ""}, code(STEP)
            )
        )
    )
    run(path, "--write", code=1)  # nothing calls the scaler; its import is for a person to change
    cells = json.loads(path.read_text())["cells"]
    assert [cell["source"] for cell in cells[1:4]] == ["await go()", [], ""]
    assert cells[4]["source"][0].startswith("with unamp.autocast")


def test_a_cell_that_is_no_python_is_named_and_the_others_are_done(path: Path) -> None:
    path.write_text(json.dumps(notebook(code(OLD), code("with torch.autocast('cuda'"), code(STEP))))
    said = run(path, "--write", code=1).stdout
    assert "cell 2:1:1: look here: with torch.autocast('cuda'" in said
    assert "cell 3:1:6: moved" in said
    assert "unamp.autocast" in path.read_text()


def test_a_line_of_blanks_is_read_once(path: Path) -> None:
    path.write_text(
        json.dumps(
            notebook(
                code(["import torch\n", "torch.autocast('cuda')\n", "$\n", " " * 1_000_000 + "x"])
            )
        )
    )
    assert "the cell cannot be read as Python" in run(path, code=1).stdout


def test_notebooks_of_other_languages_hold_nothing(path: Path) -> None:
    path.write_text(json.dumps(notebook(code(STEP), kernelspec={"language": "R"})))
    assert run(path, code=0).stdout == "1 file read: nothing found\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"cells": [autocast', "it is no notebook: Expecting value"),
        (b'["autocast"]', "it has no list of cells"),
        (b'{"cells": {"autocast": 1}}', "it has no list of cells"),
        (b'{"worksheets": [], "a": "autocast"}', "nbconvert"),
        (json.dumps(notebook(code([1, "autocast"]))).encode(), "the source of cell 1 is no text"),
        (json.dumps(notebook(code({"autocast": 1}))).encode(), "the source of cell 1 is no text"),
        ("autocast é".encode("utf-16"), ""),
        (b'{"cells": "autocast \xff"}', "it is not utf-8"),
        (b"autocast" + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_notebook_is_told_in_a_line(path: Path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    before = path.read_bytes()
    report = migrate_paths([path], write=True)
    assert path.read_bytes() == before
    if words == "nested too deeply":
        assert len(report.errors) == 1
        return
    assert all("\n" not in said and words in said for _, said in report.errors)
    assert len(report.errors) == bool(words)


def test_a_huge_notebook_is_told_in_a_line(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(65 << 20)
    assert "it has 65 MB, and up to 64 are read" in run(path, code=2).stderr


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["code", "torch.autocast('cuda')\n", "import torch", "\ud800", "%%x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["source", "cell_type", "cells", "x"]), inner)
    ),
    max_leaves=8,
)
sources = st.lists(
    st.sampled_from(
        [*OLD, *STEP, "%x\n", "!y\n", "'''\n", "\\\n", "(", "\ue000", "z?\n", "\x0c\n", "\r\n"]
    ),
    max_size=5,
)
cells = st.builds(code, sources | sources.map("".join) | values) | values


@settings(max_examples=150, deadline=None)
@given(
    content=st.lists(cells, max_size=4).map(lambda made: json.dumps(notebook(*made)).encode())
    | values.map(json.dumps).map(str.encode)
    | st.binary()
)
@example(content=json.dumps(notebook(code(['"\ue000cell 1\ue000"\n', *OLD, "\n", *STEP]))).encode())
def test_no_notebook_brings_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "any.ipynb"
    path.write_bytes(content)
    report = migrate_paths([path], write=True)
    assert report.read == 1
    assert all(said and "\n" not in said for _, said in report.errors)
    if report.errors or not report.files:
        assert path.read_bytes() == content
        return
    new = json.loads(path.read_bytes())
    old = json.loads(content)
    for cell, before in zip(new["cells"], old["cells"], strict=True):
        if isinstance(cell, dict):
            assert {**cell, "source": 0} == {**before, "source": 0}
    assert not any(file.changed for file in migrate_paths([path]).files)


def test_deepspeed_configurations_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(
        '{\n  "fp16": {"enabled": "auto"},\n  "bf16": {"enabled": false},\n'
        '  "amp": {"level": 3}\n}\n'
    )
    (tmp_path / "package.json").write_text('{"name": "fp16"}')
    said = run(tmp_path, code=1).stdout.splitlines()
    assert said[0].startswith(
        f'{path}:2:3: look here: "fp16": DeepSpeed\'s engine casts the weights'
    )
    assert said[1] == "2 files read: 1 look here"


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.sampled_from(list('"fp16:{}[], \n\\1')), max_size=40))
@example('{"fp16": {"enabled":')
@example('"fp16":{"a":' + "[" * 100_000)
def test_no_configuration_brings_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("any") / "any.json"
    path.write_text(text)
    report = migrate_paths([path], write=True)
    assert path.read_text() == text
    assert all(said and "\n" not in said for _, said in report.errors)
