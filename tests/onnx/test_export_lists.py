"""Lists for tools that convert models name the nodes to keep, and say what they cannot.

The models that the tools make follow the policy.
"""

from __future__ import annotations

import ast
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import invoke
from elsewhere import ended
from onnx import ModelProto, checker, helper, load, save
from onnx_graphs import F16, F32, cast, model, node, saved, weight

from unamp import LayerRule, LayerRules, Policy, Precision
from unamp.exporting import TOOLS, ExportLists, export_lists
from unamp.onnx import check
from unamp.vocabulary import vocabulary

O1 = Policy("O1", "float16")
HEAD = [("head", "torch.nn.modules.linear.Linear"), ("linear", "aten.linear.default")]
BODY = [("body", "torch.nn.modules.linear.Linear"), ("linear", "aten.linear.default")]


def rules(**policies: Any) -> Precision:
    return Precision(
        O1, LayerRules([LayerRule(pattern, policy) for pattern, policy in policies.items()])
    )


@pytest.fixture
def lists(tmp_path: Path) -> Any:
    def make(
        made: ModelProto, precision: Precision | Policy = O1, tool: str = "onnxconverter-common"
    ) -> ExportLists:
        given = Precision(precision) if isinstance(precision, Policy) else precision
        return export_lists(given, tool, saved(made, tmp_path))

    return make


def kept(found: ExportLists) -> tuple[object, object]:
    return found.arguments["op_block_list"], found.arguments["node_block_list"]


def two_layers() -> ModelProto:
    nodes = [
        node("MatMul", "x w", "m", BODY),
        node("MatMul", "m v", "n", HEAD),
        node("Softmax", "n", "y"),
    ]
    return model(nodes, "y", [weight("w"), weight("v")])


def test_types_where_all_of_their_nodes_stay_else_names(lists: Any) -> None:
    assert kept(lists(two_layers())) == (["Softmax"], [])
    assert kept(lists(two_layers(), rules(head="float32"))) == (["Softmax"], ["n_node"])
    assert kept(lists(two_layers(), rules(head="float32", body="float32"))) == (
        ["MatMul", "Softmax"],
        [],
    )
    own = rules(head=Policy("O1", "float16", deny="linear"))
    assert kept(lists(two_layers(), own)) == (["Softmax"], ["n_node"])
    assert lists(two_layers(), own).unsaid == []


@pytest.mark.parametrize(
    "precision",
    [rules(), rules(head="float32"), rules(body="float32")],
    ids=["none", "head", "body"],
)
def test_what_onnxconverter_common_makes_of_them_follows_the_policy(
    tmp_path: Path, lists: Any, precision: Precision
) -> None:
    exec(lists(two_layers(), precision).code, names := {})
    checker.check_model(names["model"])
    save(names["model"], tmp_path / "low.onnx")
    found = check(tmp_path / "low.onnx", precision)
    assert {each.name: each.dtype for each in found.nodes} == {
        "m_node": "float32" if "body" in str(precision) else "float16",
        "n_node": "float32" if "head" in str(precision) else "float16",
        "y_node": "float32",
    }
    assert found.follows


def test_what_follows_its_inputs_is_decided_by_them(lists: Any) -> None:
    nodes = [
        node("MatMul", "x w", "low", BODY),
        node("Relu", "low", "still_low", [("relu", "aten.relu.default")]),
        node("Softmax", "x", "wide", [("softmax", "aten.softmax.int")]),
        node("Relu", "wide", "still_wide", [("relu", "aten.relu.default")]),
        node("Add", "still_low still_wide", "y", [("add", "aten.add.Tensor")]),
    ]
    assert kept(lists(model(nodes, "y", [weight("w")]))) == (
        ["Add", "Softmax"],
        ["still_wide_node"],
    )


def test_weights_count_and_single_numbers_do_not(lists: Any) -> None:
    add = [("add", "aten.add.Tensor")]
    nodes = [
        node("MatMul", "x w", "m", BODY),
        node("Add", "m one", "a", add),
        node("Add", "a many", "y", add),
    ]
    made = model(nodes, "y", [weight("w"), weight("one", shape=()), weight("many", shape=(4,))])
    assert kept(lists(made)) == ([], ["y_node"])
    for each in made.graph.node:
        del each.metadata_props[:]
    assert kept(lists(made)) == ([], []), "nobody says whose the weights are"


def test_what_is_made_of_constants_goes_with_those_that_take_it(lists: Any) -> None:
    nodes = [
        node("Transpose", "w", "for_low"),
        node("Transpose", "v", "for_wide"),
        node("MatMul", "x for_low", "m"),
        node("Pow", "m for_wide", "y"),
    ]
    assert kept(lists(model(nodes, "y", [weight("w"), weight("v")]))) == (
        ["Pow"],
        ["for_wide_node"],
    )


def test_what_the_file_does_not_say_stays_in_float32_and_is_told(lists: Any) -> None:
    nodes = [node("MatMul", "x w", "m"), node("Secret", "m", "y", domain="my.own")]
    found = lists(model(nodes, "y", [weight("w")]), Policy("O1", "float16", deny="linear"))
    assert kept(found) == (["MatMul", "Secret"], [])
    assert found.unsaid == [
        (
            "the file does not say its operation or its layer, "
            "and the policy says float16 or float32; here they stay in float32: 1 MatMul"
        ),
        "no operation of the vocabulary is a Secret; here they stay in float32: 1 Secret",
    ]


def test_rules_that_match_no_layer_and_rules_for_results_are_told(lists: Any) -> None:
    found = lists(
        two_layers(),
        Precision(O1, LayerRules({"haed": "float32", "head": "float32"}, result="low")),
    )
    assert "the rule for layers 'haed' matches no layer of the model" in found.unsaid
    assert sum("casts its results to the low dtype" in sentence for sentence in found.unsaid) == 2


def test_nodes_that_have_no_name_or_one_of_another(lists: Any) -> None:
    made = two_layers()
    made.graph.node[1].name = ""
    found = lists(made, rules(head="float32"))
    assert found.unsaid == ["nodes without a name cannot be on a list; here they run low: 1 MatMul"]
    made.graph.node[1].name = made.graph.node[0].name
    found = lists(made, rules(head="float32"))
    assert found.unsaid == [
        "nodes that are to run low have these names, too, and stay in float32: m_node"
    ]


def test_a_weight_that_nodes_of_both_dtypes_take_is_stored_twice(
    tmp_path: Path, lists: Any
) -> None:
    nodes = [node("MatMul", "x w", "m", BODY), node("MatMul", "m w", "y", HEAD)]
    found = lists(model(nodes, "y", [weight("w")]), rules(head="float32"))
    assert found.unsaid == []
    exec(found.code, names := {})
    assert [(each.name, each.data_type) for each in names["model"].graph.initializer] == [
        ("w", F16),
        ("w in float32", F32),
    ]
    save(names["model"], tmp_path / "low.onnx")
    assert check(tmp_path / "low.onnx", rules(head="float32")).follows


def test_weights_of_nodes_in_float32_are_not_rounded(lists: Any) -> None:
    made = two_layers()
    # PyTorch's exporter writes the shapes of weights, too
    made.graph.value_info.append(helper.make_tensor_value_info("v", F32, [4, 4]))
    exec(lists(made, rules(head="float32")).code, names := {})
    assert {each.name: each.data_type for each in names["model"].graph.initializer} == {
        "w": F16,
        "v": F32,
    }


def test_what_a_tool_cannot_convert_stays_in_float32_and_is_told(
    tmp_path: Path, lists: Any
) -> None:
    made = model([cast("x", "h", F32), node("Resize", "image  scales", "y", mode="linear")], "y")
    made.graph.node[1].input[:] = ["x", "", "scales"]
    del made.graph.node[0]
    made.graph.initializer.append(weight("scales", shape=(2,)))
    found = lists(made, Policy("O2", "float16"))
    told = "onnxconverter-common makes no valid Resize in float16; here all of them stay in float32"
    assert (kept(found), found.unsaid) == ((["Resize"], []), [told])
    exec(found.code, names := {})
    checker.check_model(names["model"], full_check=True)
    assert lists(made, Policy("O2", "float16"), "modelopt").unsaid == []


def test_graphs_inside_control_flow_are_refused(lists: Any) -> None:
    inner = [
        helper.make_graph(
            [node("Relu", "x", name)], name, [], [helper.make_tensor_value_info(name, F32, None)]
        )
        for name in ("yes", "no")
    ]
    made = model([node("If", "c", "y", then_branch=inner[0], else_branch=inner[1])], "y")
    made.graph.initializer.append(weight("c", np.bool_, ()))
    with pytest.raises(
        ValueError,
        match="has graphs inside control flow, whose nodes lists for modelopt cannot name",
    ):
        lists(made, O1, "modelopt")


def test_a_cast_of_the_network_keeps_what_it_says(lists: Any) -> None:
    nodes = [
        node("MatMul", "x w", "m", BODY),
        cast("m", "f", F32),
        cast("x", "h", F16),
        node("Relu", "f", "y"),
    ]
    assert kept(lists(model(nodes, "y", [weight("w")]))) == (["Relu"], ["f_node"])


def test_names_are_patterns_for_modelopt(lists: Any) -> None:
    made = two_layers()
    made.graph.node[1].name = "/head.0/MatMul"
    found = lists(made, rules(head="float32"), "modelopt")
    assert found.arguments["nodes_to_exclude"] == [r"/head\.0/MatMul$"]
    assert found.arguments["low_precision_type"] == "fp16"
    brain = lists(made, Policy("O1", "bfloat16"), "modelopt")
    assert brain.arguments["low_precision_type"] == "bf16"


def test_openvino_takes_the_names_of_results(lists: Any) -> None:
    found = lists(two_layers(), rules(head="float32"), "openvino")
    assert found.arguments == {"float32": ["n", "y"], "INFERENCE_PRECISION_HINT": "f16"}
    assert "compiled.get_runtime_model() tells" in found.unsaid[-1]
    with pytest.raises(
        ValueError,
        match="openvino knows operations by the names of their results alone: say --model",
    ):
        export_lists(Precision(O1), "openvino")


def test_without_a_model_types_are_named_and_the_rest_is_told() -> None:
    found = export_lists(rules(head="float32"), "onnxconverter-common")
    types = found.arguments["op_block_list"]
    assert isinstance(types, list)
    assert {"Softmax", "Exp", "LayerNormalization", "Hardmax"} <= {*types}
    assert not {"MatMul", "Conv", "Relu", "Add"} & {*types}
    said = dict(sentence.split(": ", 1) for sentence in found.unsaid)
    assert said["rules for layers, which only --model finds the nodes of"] == "'head'"
    following = said[
        "they run in the dtype of their inputs, which only --model tells; here they run in float16"
    ].split(", ")
    assert {"Add", "Relu"} <= {*following}
    assert not {*following} & {*types}
    denied = export_lists(Precision(O1.replace(deny=("linear",))), "modelopt")
    assert "MatMul" in str(denied.arguments["op_types_to_exclude"])
    assert any(
        sentence.startswith("the policy says different things") and "MatMul" in sentence
        for sentence in denied.unsaid
    )


@pytest.mark.parametrize("tool", ["onnxconverter-common", "coremltools"])
def test_a_dtype_that_a_tool_does_not_have_is_an_error(tool: str) -> None:
    with pytest.raises(ValueError, match=f"{tool} has no bfloat16; it converts to float16"):
        export_lists(Precision(Policy("O1", "bfloat16")), tool)


@pytest.mark.parametrize("tool", TOOLS)
def test_policies_that_no_list_can_say(tool: str) -> None:
    for policy in (Policy("O0"), Policy("O2", "float32"), Policy(deny="*")):
        with pytest.raises(
            ValueError,
            match=f"nothing is low under this policy, so there is nothing for {tool} to convert",
        ):
            export_lists(Precision(policy), tool)
    with pytest.raises(ValueError, match=f"have bfloat16 and float16; {tool} takes one low dtype"):
        export_lists(rules(head=Policy("O1", "bfloat16")), tool)
    with pytest.raises(ValueError, match="preset 'native' has no lists of its own"):
        export_lists(Precision(Policy(preset="native")), tool)


def test_an_unknown_tool_and_a_model_for_one_that_reads_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'tensorrt'.*torch-tensorrt"):
        export_lists(Precision(O1), "tensorrt")
    with pytest.raises(ValueError, match="coremltools does not read ONNX files"):
        export_lists(Precision(O1), "coremltools", tmp_path / "model.onnx")


@pytest.mark.parametrize("tool", ["coremltools", "torch-tensorrt"])
def test_layers_are_regular_expressions_where_names_are_all_there_is(tool: str) -> None:
    given = rules(**{"**.wo": "float32", ":Linear": "float32", "head": Policy("O2", "float16")})
    found = export_lists(given, tool)
    name = "autocast_excluded_nodes" if tool == "torch-tensorrt" else "float32_layers"
    assert found.arguments[name] == [r"(?:[^.]+\.)*wo(\.|$)"]
    assert "the rule for layers ':Linear' asks for a class; only names can be said" in found.unsaid
    assert (
        "the rule for layers 'head' has a policy of its own, which one list cannot say"
        in found.unsaid
    )


def test_types_of_core_ml_by_the_rules_for_them() -> None:
    found = export_lists(Precision(O1), "coremltools").arguments
    assert {"linear", "conv", "matmul"} <= {*found["float16"]}
    assert {"add", "relu", "concat"} <= {*found["following"]}
    assert not {"softmax", "layer_norm", "exp", "const"} & {*found["float16"], *found["following"]}
    table = tomllib.loads(resources.files("unamp").joinpath("data/coreml.toml").read_text("utf-8"))
    for kind, operations in table["operators"].items():
        assert {operations} if isinstance(operations, str) else {*operations} <= {*vocabulary()}, (
            kind
        )


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_written_is_python(lists: Any, tool: str) -> None:
    given = rules(head="float32")
    reads = tool in ("modelopt", "onnxconverter-common", "openvino")
    ast.parse(lists(two_layers(), given, tool).code if reads else export_lists(given, tool).code)


def run(precision: Precision, folder: Path, *arguments: str, code: int) -> str:
    (folder / "precision.toml").write_text(precision.to_toml())
    done = invoke("export-lists", folder / "precision.toml", *arguments)
    assert done.exit_code == code, done.output
    return done.output


def test_the_command_writes_python_or_json(tmp_path: Path) -> None:
    path = str(saved(two_layers(), tmp_path))
    text = run(
        rules(head="float32"), tmp_path, "--for", "onnxconverter-common", "--model", path, code=0
    )
    assert text.startswith("import onnx\n")
    exec(text, names := {})
    assert [each.op_type for each in names["model"].graph.node].count("MatMul") == 2
    found = json.loads(
        run(rules(head="float32"), tmp_path, "--for", "modelopt", "--model", path, "--json", code=0)
    )
    assert found["tool"] == "modelopt"
    assert found["arguments"]["nodes_to_exclude"] == ["n_node$"]
    assert found["unsaid"] == []
    for tool in ("coremltools", "torch-tensorrt"):
        assert json.loads(run(rules(), tmp_path, "--for", tool, "--json", code=1))["unsaid"]


def test_the_command_exits_with_one_where_something_is_not_said(tmp_path: Path) -> None:
    text = run(rules(head="float32"), tmp_path, "--for", "modelopt", code=1)
    assert "# not said: rules for layers, which only --model finds the nodes of: 'head'\n" in text
    ast.parse(text)


def test_errors_are_of_the_command_line(tmp_path: Path) -> None:
    for arguments in (
        ["--for", "tensorrt"],
        ["--for", "onnxconverter-common", "--model", str(tmp_path / "none.onnx")],
        ["--for", "onnxconverter-common", "--model", str(tmp_path / "precision.toml")],
    ):
        assert "Error" in run(rules(), tmp_path, *arguments, code=2)


def test_a_name_in_a_file_is_no_code(tmp_path: Path) -> None:
    made = two_layers()
    for each in made.graph.node[:2]:
        each.name = "x\nraise SystemExit('run')#"
    path = saved(made, tmp_path)
    text = run(
        rules(head="float32"),
        tmp_path,
        "--for",
        "onnxconverter-common",
        "--model",
        str(path),
        code=1,
    )
    assert (
        "# not said: nodes that are to run low have these names, too, "
        "and stay in float32: x\\nraise"
    ) in text
    assert not any(isinstance(each, ast.Raise) for each in ast.parse(text).body)


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "precision.toml").write_text(Precision(O1).to_toml())
    code = "import sys; sys.modules['onnx'] = None; import unamp.cli; unamp.cli.main()"
    words = ["export-lists", str(tmp_path / "precision.toml"), "--for", "modelopt"]
    path = str(saved(two_layers(), tmp_path))
    done = ended("-c", code, *words)
    assert (done.code, done.stderr) == (1, "")
    done = ended("-c", code, *words, "--model", path)
    assert done.code == 2
    assert "unamp[onnx]" in done.stderr
    assert load(path).graph.node
