"""A reader of a damaged or hostile model names the defect in one line.

It opens no other file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import invoke
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx_graphs import F16, F32, cast, model, node, saved, weight

from unamp import LayerRule, LayerRules, Policy, Precision
from unamp.onnx import BadModel, check

PRECISION = Precision(Policy("O1", "float16"), LayerRules([LayerRule("head", "float32")]))
LINEAR = [("head", "torch.nn.modules.linear.Linear"), ("linear", "aten.linear.default")]


def sound() -> ModelProto:
    branch = helper.make_graph(
        [node("Relu", "h", "b")], "b", [], [helper.make_tensor_value_info("b", F32, None)]
    )
    nodes = [
        node("MatMul", "x w", "h", LINEAR),
        node("If", "c", "i", then_branch=branch, else_branch=branch),
        cast("i", "l", F16),
        cast("l", "u", F32),
        node("Softmax", "u", "y", [("softmax", "aten.softmax.int")]),
    ]
    return model(nodes, "y", [weight("w"), weight("c", np.bool_, ())])


def test_the_sound_model_is_read(tmp_path: Path) -> None:
    found = check(saved(sound(), tmp_path), PRECISION)
    assert [(each.name, each.verdict) for each in found.nodes] == [
        ("h_node", "follows"),
        ("b_node", "follows"),
        ("b_node", "follows"),
        ("y_node", "follows"),
    ]


def external(location: str) -> Callable[[ModelProto], None]:
    def change(made: ModelProto) -> None:
        tensor = made.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return change


def sizes(*dims: int) -> Callable[[ModelProto], None]:
    return lambda made: made.graph.initializer[0].dims.__setitem__(slice(None), dims)


def first(made: ModelProto) -> NodeProto:
    return made.graph.node[0]


BAD: dict[str, tuple[Callable[[ModelProto], Any], str]] = {
    "a node that takes its own result": (
        lambda made: first(made).input.__setitem__(0, "h"),
        (
            r"node 'h_node' takes 'h', which no node before makes: "
            r"there is a cycle, or nodes are out of order"
        ),
    ),
    "a cycle through the graph": (
        lambda made: first(made).input.__setitem__(0, "y"),
        "there is a cycle",
    ),
    "a name that nothing makes": (
        lambda made: first(made).input.__setitem__(0, "z"),
        "takes 'z', which nothing makes",
    ),
    "two nodes that make one value": (
        lambda made: made.graph.node[2].output.__setitem__(0, "h"),
        "two nodes make 'h'",
    ),
    "a result that nothing makes": (
        lambda made: setattr(made.graph.output[0], "name", "z"),
        "the graph gives 'z'",
    ),
    "a huge shape": (
        sizes(2**62, 2**62),
        "tensor 'w' says that it has more numbers than any memory",
    ),
    "thousands of sizes": (sizes(*[2**40] * 5000), "more numbers than any memory"),
    "a large shape without the data": (
        sizes(2**20, 2**20),
        "tensor 'w' says 1099511627776 numbers and has 16",
    ),
    "a negative size": (sizes(-1, 4), "tensor 'w' has a negative size"),
    "data above the folder": (
        external("../w.bin"),
        "has its data in '../w.bin', outside of the model's folder",
    ),
    "data at an absolute place": (
        external("/etc/passwd"),
        "'/etc/passwd', outside of the model's folder",
    ),
    "data above the folder, by a detour": (external("a/../../w"), "outside of the model's folder"),
    "data in a file without a name": (external(""), "outside of the model's folder"),
    "data in a file that cannot be": (external("a\0b"), "outside of the model's folder"),
    "data under a name that is too long": (
        external("a/" * 5000 + "../" * 5001),
        "outside of the model's folder",
    ),
    "a dtype that there is not": (
        lambda made: setattr(made.graph.initializer[0], "data_type", 99),
        "no dtype 99 in ONNX",
    ),
    "a cast to no dtype": (
        lambda made: setattr(made.graph.node[2].attribute[0], "i", -7),
        "no dtype -7 in ONNX",
    ),
    "no version of the operators": (
        lambda made: made.ClearField("opset_import"),
        "says no version of ONNX's operators",
    ),
    "no graph": (lambda made: made.ClearField("graph"), "it has no graph"),
    "a name that a terminal would obey": (
        lambda made: first(made).input.__setitem__(0, "\x1b[31mred\n\u202e"),
        r"takes '\\x1b\[31mred\\n\\u202e', which nothing makes",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_model(tmp_path: Path, what: str) -> None:
    change, message = BAD[what]
    made = sound()
    change(made)
    with pytest.raises(BadModel, match=message) as error:
        check(saved(made, tmp_path), PRECISION)
    assert str(error.value).isprintable()


def test_data_behind_a_link_that_leaves_the_folder(tmp_path: Path) -> None:
    made, folder = sound(), tmp_path / "model"
    folder.mkdir()
    (folder / "w.bin").symlink_to(tmp_path / "elsewhere")
    external("w.bin")(made)
    with pytest.raises(BadModel, match="outside of the model's folder"):
        check(saved(made, folder), PRECISION)


def test_data_beside_the_model_need_not_be_there(tmp_path: Path) -> None:
    made = sound()
    external("weights/w.bin")(made)
    assert check(saved(made, tmp_path), PRECISION).nodes


def test_versions_of_operators_that_nobody_knows(tmp_path: Path) -> None:
    for version in (-(2**63), 0, 2**31, 2**63 - 1):
        made = sound()
        made.opset_import[0].version = version
        check(saved(made, tmp_path), PRECISION)


def test_graphs_inside_graphs_without_end(tmp_path: Path) -> None:
    made = sound()
    for _ in range(150):
        around = sound()
        around.graph.node[1].attribute[0].g.CopyFrom(made.graph)
        made = around
    with pytest.raises(BadModel, match="it is no ONNX model, or not all of one"):
        check(saved(made, tmp_path), PRECISION)


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"not a model", b"\xff" * 100, b"[policy]\nlevel = 1\n"]
)
def test_what_is_no_model_at_all(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(BadModel, match="it is no ONNX model"):
        check(tmp_path / "model.onnx", PRECISION)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="it is no file"):
        check(tmp_path, PRECISION)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadModel, match="it is no file"):
        check(tmp_path / "pipe", PRECISION)
    with (tmp_path / "large").open("wb") as large:
        large.truncate(1 << 31)
    with pytest.raises(BadModel, match="it is larger than 2 GiB"):
        check(tmp_path / "large", PRECISION)


def followed_or_told(content: bytes, folder: Path) -> None:
    """Read a file; raise any error that is not `BadModel` with a message in one line."""
    path = folder / "model.onnx"
    path.write_bytes(content)
    said = ""
    try:
        check(path, PRECISION).to_data()
    except BadModel as error:
        said = str(error)
    assert said.isprintable()


SOUND = sound().SerializeToString()
fuzzed = settings(max_examples=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzzed
@given(
    end=st.integers(0, len(SOUND)),
    flips=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=6),
    gap=st.none() | st.tuples(st.integers(0, len(SOUND)), st.integers(1, 40)),
    cut=st.booleans(),
)
def test_bytes_that_are_flipped_lost_and_cut(
    tmp_path: Path, end: int, flips: Any, gap: Any, cut: bool
) -> None:
    content = bytearray(SOUND)
    for place, byte in flips:
        content[place] = byte
    if gap:
        del content[gap[0] : gap[0] + gap[1]]
    followed_or_told(bytes(content[:end] if cut else content), tmp_path)


def fields(message: Message) -> list[tuple[Any, Any, int | None]]:
    """Return every field of a message and of its inner messages.

    Each is the message, the field, and the position in a repeated field.
    """
    found: list[tuple[Any, Any, int | None]] = []
    for field, value in message.ListFields():
        several = not isinstance(value, str | bytes | int | float | Message)
        for place, each in enumerate(value if several else [value]):
            found.append((message, field, place if several else None))
            if isinstance(each, Message):
                found += fields(each)
    return found


NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 2, 7, 10, 11, 16, 17, 99, 2**31 - 1])
NAMES = st.sampled_from(
    [
        "",
        "x",
        "y",
        "h",
        "w",
        "If",
        "Cast",
        "Loop",
        "Constant",
        "com.microsoft",
        "\x1b[2J",
        "to",
        "['a']",
        "['",
    ]
)


@settings(fuzzed, max_examples=700)
@given(data=st.data())
def test_fields_that_are_exchanged_doubled_and_removed(tmp_path: Path, data: st.DataObject) -> None:
    made = sound()
    for _ in range(data.draw(st.integers(1, 4))):
        places = fields(made)
        owner, field, place = places[data.draw(st.integers(0, len(places) - 1))]
        value = getattr(owner, field.name)
        kind = data.draw(st.sampled_from(["exchange", "remove", "double"]))
        if kind == "remove":
            owner.ClearField(field.name)
        elif kind == "double" and place is not None:
            value.append(value[place])
        elif field.type in (field.TYPE_STRING, field.TYPE_INT64, field.TYPE_INT32):
            new = data.draw(NAMES if field.type == field.TYPE_STRING else NUMBERS)
            new = max(new, -(2**31)) if field.type == field.TYPE_INT32 else new
            if place is None:
                setattr(owner, field.name, new)
            else:
                value[place] = new
    followed_or_told(made.SerializePartialToString(), tmp_path)


@pytest.mark.parametrize("what", BAD)
def test_the_command_says_it_and_exits_with_2(tmp_path: Path, what: str) -> None:
    made = sound()
    BAD[what][0](made)
    (tmp_path / "precision.toml").write_text(PRECISION.to_toml())
    arguments = ["onnx", str(saved(made, tmp_path)), "--policy", str(tmp_path / "precision.toml")]
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert "\x1b[31m" not in done.output
    assert "Traceback" not in done.output
