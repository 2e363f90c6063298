"""Lists for tools that convert models name the operations of files exported in float32."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from exported import Network

from unamp import LayerRules, Policy, Precision
from unamp.exporting import export_lists
from unamp.onnx import check

#: Every export is in float32.
pytestmark = pytest.mark.either_kernels

RULES = LayerRules({"**.wo": "float32"})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("rules", [LayerRules(), RULES], ids=["no rules", "rules"])
@pytest.mark.parametrize("policy", [Policy("O1"), Policy("O2"), Policy("OD")], ids=repr)
@pytest.mark.parametrize("newer", [True, False], ids=["exporter", "older exporter"])
def test_a_converted_file_follows_the_policy(
    tmp_path: Path, policy: Policy, rules: LayerRules, newer: bool
) -> None:
    torch.manual_seed(0)
    network, x, path = Network().eval(), torch.rand(2, 3, 16), tmp_path / "model.onnx"
    torch.onnx.export(
        network, (x,), str(path), dynamo=newer, opset_version=22 if newer else 20, verbose=False
    )
    precision = Precision(policy, rules)
    lists = export_lists(precision, "onnxconverter-common", path)
    assert lists.unsaid == []
    exec(lists.code, names := {})
    onnx.save(names["model"], tmp_path / "low.onnx")
    found = check(tmp_path / "low.onnx", precision)
    assert {node.verdict for node in found.nodes} == {"follows"}
    assert found.follows
    assert {node.dtype for node in found.nodes} == {"float16", "float32"}
    session = onnxruntime.InferenceSession(tmp_path / "low.onnx")
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(result, network(x), atol=0.01)


def test_lists_of_another_policy_do_not_follow(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        Network().eval(), (torch.rand(2, 3, 16),), str(path), opset_version=22, verbose=False
    )
    exec(export_lists(Precision(Policy("O1")), "onnxconverter-common", path).code, names := {})
    onnx.save(names["model"], tmp_path / "low.onnx")
    found = check(tmp_path / "low.onnx", Precision(Policy("O1"), RULES))
    assert {node.layer for node in found.nodes if node.verdict == "differs"} == {
        "blocks.0.wo",
        "blocks.1.wo",
    }


def test_names_for_torch_tensorrt_are_those_of_an_exported_program() -> None:
    lists = export_lists(Precision(Policy("O1"), RULES), "torch-tensorrt")
    before, _, call = lists.code.partition("compiled = torch_tensorrt.dynamo.compile(")
    exec(before.replace("import torch_tensorrt\n", ""), names := {})
    given = "exported_program=None, inputs=None,"
    exec(
        "arguments = "
        f"dict({given}{call.replace('exported_program,', '', 1).replace('inputs=inputs,', '', 1)}",
        names,
    )
    operators, layers = (
        names["arguments"]["autocast_excluded_ops"],
        names["arguments"]["autocast_excluded_nodes"],
    )
    assert names["arguments"]["autocast_low_precision_type"] is torch.float16
    program = torch.export.export(Network().eval(), (torch.rand(2, 3, 16),))
    kept = set()
    for node in program.graph.nodes:
        if node.op == "call_function":
            # as the tool compares: the qualified name, and the innermost layer's name
            layer = list(node.meta["nn_module_stack"].values())[-1][0]
            if f"torch.ops.{node.target}" in operators or any(
                re.match(each, layer) for each in layers
            ):
                kept.add((str(node.target), layer))
    assert kept == {
        ("aten.layer_norm.default", "blocks.0.norm"),
        ("aten.layer_norm.default", "blocks.1.norm"),
        ("aten.linear.default", "blocks.0.wo"),
        ("aten.linear.default", "blocks.1.wo"),
        ("aten.softmax.int", ""),
    }
