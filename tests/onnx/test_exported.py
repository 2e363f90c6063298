"""Files of other frameworks' exporters are judged by the facts that the exporter keeps.

`export.py` wrote the files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from commanded import invoke
from onnx_graphs import F16, cast, model, node, saved, weight

from unamp import LayerRules, Policy, Precision
from unamp.exporting import export_lists
from unamp.onnx import CheckedModel, check
from unamp.onnx.planning import plan
from unamp.onnx.reading import read_graph

EXPORTED = Path(__file__).parent / "exported"
FILES = sorted(EXPORTED.glob("*.onnx"))
GUIDE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text("utf-8")
WIDE = LayerRules({"wo": "float32"})


def held(name: str, rules: LayerRules | None = None, low: str = "float16") -> CheckedModel:
    return check(EXPORTED / f"{name}.onnx", Precision(Policy("O1", low), rules))


def layers(checked: CheckedModel) -> dict[str | None, set[str]]:
    found: dict[str | None, set[str]] = {}
    for each in checked.nodes:
        found.setdefault(each.layer, set()).add(each.type)
    return found


def wrong(checked: CheckedModel) -> list[tuple[str, str]]:
    return [(each.name, each.verdict) for each in checked.nodes if each.verdict != "follows"]


def test_there_are_files_of_four_exporters() -> None:
    assert {file.name.partition("-")[0] for file in FILES} == {
        "jax2onnx",
        "mindspore",
        "paddle2onnx",
        "tf2onnx",
    }
    assert len(FILES) == 16


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_says_which_versions_made_it_as_the_guide_does(file: Path) -> None:
    said = onnx.load(file).doc_string
    assert said
    assert said in GUIDE
    assert file.stat().st_size < 4096


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("jax2onnx-conv", ["node_Conv_1"]),
        ("jax2onnx-dense", ["node_Gemm_1", "node_Gemm_10"]),
        ("mindspore-conv", ["1Conv"]),
        ("mindspore-dense", ["1Gemm", "3Gemm"]),
        ("paddle2onnx-conv", ["Conv.0"]),
        ("paddle2onnx-dense", ["MatMul.0", "MatMul.1"]),
        ("tf2onnx-conv", ["net_1/conv_1/convolution"]),
        ("tf2onnx-dense", ["net_1/block_1/wi_1/MatMul_Gemm__15", "net_1/wo_1/MatMul"]),
    ],
)
def test_the_products_of_a_float32_file_are_named(name: str, products: list[str]) -> None:
    checked = held(f"{name}-float32")
    assert wrong(checked) == [(product, "differs") for product in products]
    assert {each.why for each in checked.nodes} == {""}


def test_tf2onnx_keeps_the_layers_of_keras() -> None:
    checked = held("tf2onnx-dense-float16", WIDE)
    assert checked.follows
    assert wrong(checked) == []
    assert layers(checked).keys() == {"block.wi", "block.norm", "wo", "soft"}
    assert layers(checked)["block.wi"] == {"MatMul", "Add"}
    assert wrong(held("tf2onnx-dense-float16")) == [("net_1/wo_1/MatMul", "differs")]
    assert wrong(
        held("tf2onnx-dense-float16", LayerRules({"block": "float32", "wo": "float32"}))
    ) == [
        ("net_1/block_1/wi_1/MatMul", "differs"),
        ("net_1/block_1/wi_1/BiasAdd", "differs"),
    ]
    assert held("tf2onnx-conv-float16").follows


def test_mindspore_keeps_the_layers_of_what_has_a_name_or_weights() -> None:
    checked = held("mindspore-dense-float16", WIDE)
    assert checked.unmatched == []
    assert layers(checked) == {"block.wi": {"Gemm"}, "block.soft": {"Softmax"}, "wo": {"Gemm"}}
    assert wrong(checked) == [("7Gemm", "differs")]
    assert [each.why for each in checked.nodes if each.why] == [
        "its inputs are rounded to float16 first: the device of the export may have no such kernel"
    ]
    by_class = LayerRules({"block:Block": "float32", "block.soft:Softmax": "float32"})
    assert held("mindspore-dense-float16", by_class).unmatched == []
    assert layers(held("mindspore-conv-float16"))[None] == {"Relu"}


def test_paddle2onnx_keeps_no_layers() -> None:
    checked = held("paddle2onnx-dense-bfloat16", WIDE, "bfloat16")
    assert layers(checked).keys() == {None}
    assert checked.unmatched == ["wo"]
    assert wrong(checked) == [("MatMul.0", "unclear"), ("MatMul.1", "unclear")]
    assert [(each.name, each.used, each.saved) for each in checked.weights] == [
        ("linear_0.w_0", "bfloat16", 8),
        ("linear_0.b_0", "bfloat16", 4),
    ]
    conv = next(
        each
        for each in held("paddle2onnx-conv-bfloat16", low="bfloat16").nodes
        if each.type == "Conv"
    )
    assert (conv.verdict, conv.why.partition(":")[0]) == (
        "differs",
        "its inputs are rounded to bfloat16 first",
    )


def test_jax2onnx_replaces_what_a_region_sees() -> None:
    assert held("jax2onnx-conv-float16").follows
    checked = held("jax2onnx-dense-float16")
    assert [verdict for _, verdict in wrong(checked)] == ["invalid", "invalid", "differs"]
    assert [each.type for each in checked.nodes if each.verdict == "differs"] == ["Softmax"]
    assert layers(checked).keys() == {None}


@pytest.mark.parametrize(
    ("name", "code"),
    [("tf2onnx-dense-float16", 0), ("tf2onnx-dense-float32", 1), ("tf2onnx-conv-float16", 1)],
)
def test_the_exit_status(tmp_path: Path, name: str, code: int) -> None:
    (tmp_path / "precision.toml").write_text(
        Precision(Policy("O1", "float16"), WIDE).to_toml(), "utf-8"
    )
    done = invoke("onnx", EXPORTED / f"{name}.onnx", "--policy", tmp_path / "precision.toml")
    assert done.exit_code == code
    assert ("rule 'wo' matches no layer of the file" in done.output) == (
        name == "tf2onnx-conv-float16"
    )


def test_lists_for_other_tools_find_the_layers_too() -> None:
    graph = read_graph(EXPORTED / "tf2onnx-dense-float32.onnx")
    planned = plan(graph, Precision(Policy("O1", "float16"), WIDE))
    assert (planned.unclear, planned.unmatched) == ([], [])
    assert "net_1/wo_1/MatMul" in [each.name for each in planned.float32]
    assert "net_1/block_1/wi_1/MatMul_Gemm__15" in [each.name for each in planned.rest]


@pytest.mark.parametrize(
    "file", [file for file in FILES if "float32" in file.stem], ids=lambda file: file.stem
)
def test_a_float32_file_follows_once_a_tool_has_converted_it(tmp_path: Path, file: Path) -> None:
    layered = file.stem in ("tf2onnx-dense-float32", "mindspore-dense-float32")
    precision = Precision(Policy("O1", "float16"), WIDE if layered else None)
    exec(export_lists(precision, "onnxconverter-common", file).code, names := {})
    onnx.save(names["model"], tmp_path / "low.onnx")
    checked = check(tmp_path / "low.onnx", precision)
    assert checked.follows
    assert "float16" in {each.dtype for each in checked.nodes}


@pytest.mark.parametrize(
    ("producer", "name", "layer"),
    [
        ("tf2onnx", "net_1/norm_1/moments/mean", "norm"),
        ("tf2onnx", "net_2/dense_1_3/MatMul", "dense_1"),
        ("tf2onnx", "net_1/MatMul", ""),
        ("tf2onnx", "net/wo/MatMul", None),
        ("tf2onnx", "MatMul", None),
        ("MindSpore", "13-Default/block-Block/my-own-Norm/Mul-op3_meanReduceMean", "block.my-own"),
        ("MindSpore", "13-Default/Mul-op3Mul", ""),
        ("MindSpore", "13-Gradients/Default/wi-Dense/Mul-op3Mul", None),
        ("MindSpore", "Default/wo/Mul-op3", None),
        ("MindSpore", "7Gemm", None),
        ("other", "net_1/wo_1/MatMul", None),
        ("other", "13-Default/wo-Dense/MatMul-op0MatMul", None),
    ],
)
def test_names_are_read_as_their_exporter_writes_them(
    tmp_path: Path, producer: str, name: str, layer: str | None
) -> None:
    made = model([node("MatMul", "x w", "y", name=name)], "y", [weight("w")])
    made.producer_name = producer
    assert check(saved(made, tmp_path), Policy("O1", "float16")).nodes[0].layer == layer


def layer_of(nodes: list[onnx.NodeProto], weights: list[str], tmp_path: Path) -> list[str | None]:
    made = model(nodes, nodes[-1].output[0], [weight(name) for name in weights])
    return [each.layer for each in check(saved(made, tmp_path), Policy("O1", "float16")).nodes]


def test_weights_say_the_layer_of_the_one_node_that_takes_them(tmp_path: Path) -> None:
    low = [cast("x", "l", F16), cast("a.0.weight", "w", F16), node("MatMul", "l w", "y")]
    assert layer_of(low, ["a.0.weight"], tmp_path) == ["a.0"]
    turned = [node("Transpose", "a.weight", "t"), node("MatMul", "x t", "y")]
    assert layer_of(turned, ["a.weight"], tmp_path) == [None, "a"]
    like = [
        node("CastLike", "x a.weight", "l"),
        node("Relu", "l", "r"),
        node("MatMul", "r a.weight", "y"),
    ]
    assert layer_of(like, ["a.weight"], tmp_path) == [None, "a"], (
        "of a pattern for a dtype, nothing is taken"
    )
    whole = node("Gemm", "x a.weight a.bias", "y")
    assert layer_of([whole], ["a.weight", "a.bias"], tmp_path) == ["a"]
    assert layer_of([node("Gemm", "x a.weight b.bias", "y")], ["a.weight", "b.bias"], tmp_path) == [
        None
    ], "of two layers"
    shared = [node("MatMul", "x a.weight", "m"), node("MatMul", "m a.weight", "y")]
    assert layer_of(shared, ["a.weight"], tmp_path) == [None, None], "a layer's weights in another"
    for name in ("weight", "linear_0.w_0", "/a.weight", "a.weight:0"):
        assert layer_of([node("MatMul", f"x {name}", "y")], [name], tmp_path) == [None], name


def test_an_operator_that_gives_one_dtype_alone_needs_no_declaration(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s first", "n"),
        node("Equal", "x x", "e"),
        node("Where", "e x x", "y"),
    ]
    made = model(nodes, "y", [onnx.numpy_helper.from_array(np.array(0), "first")])
    made.graph.output.append(onnx.helper.make_tensor_value_info("n", onnx.TensorProto.INT64, None))
    checked = check(saved(made, tmp_path), Policy("O1", "float16"))
    assert [(each.type, each.verdict) for each in checked.nodes] == [("Where", "follows")]


def test_a_constant_is_a_weight_where_it_has_several_numbers(tmp_path: Path) -> None:
    for shape, wide in (((4, 4), ["w"]), ((), [])):
        value = onnx.numpy_helper.from_array(np.ones(shape, np.float32))
        nodes = [
            node("Constant", "", "w", value=value),
            cast("w", "v", F16),
            cast("x", "l", F16),
            node("Mul", "l v", "y"),
        ]
        checked = check(saved(model(nodes, "y"), tmp_path), Policy("O1", "float16"))
        assert [each.name for each in checked.weights] == wide
