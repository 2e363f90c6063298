"""Files that PyTorch's exporters write in a region agree with the region's policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from exported import Network
from onnx import TensorProto, helper
from torch import nn

import unamp
from unamp import LayerRules, Policy, Precision, policy_region
from unamp.onnx import CheckedModel, check

pytestmark = pytest.mark.beside_kernels

NUMBERS = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}


RULES = LayerRules({"**.wo": "float32", ":Conv1d": "float32"})


def exported(
    folder: Path, precision: Precision, network: nn.Module | None = None, **options: Any
) -> Path:
    """Export a network; in this operator set every operator accepts bfloat16."""
    network = (network or Network()).eval()
    if len(precision.layers):
        unamp.layer_policies(network, precision.layers)
    path = folder / "model.onnx"
    with policy_region(precision.policy):
        torch.onnx.export(
            network,
            (torch.rand(2, 3, 16),),
            str(path),
            **{"opset_version": 22, "verbose": False} | options,
        )
    return path


def differing(checked: CheckedModel) -> list[str]:
    return [node.name for node in checked.nodes if node.verdict == "differs"]


@pytest.mark.parametrize("rules", [LayerRules(), RULES], ids=["no rules", "rules"])
@pytest.mark.parametrize(
    "policy",
    [
        Policy("O1", "float16"),
        Policy("O1", "bfloat16"),
        Policy("O2", "float16"),
        Policy("OD", "bfloat16"),
    ],
    ids=repr,
)
def test_an_export_follows_the_policy_of_its_region(
    tmp_path: Path, policy: Policy, rules: LayerRules
) -> None:
    precision = Precision(policy, rules)
    path = exported(tmp_path, precision)
    found = check(path, precision)
    assert (differing(found), found.unmatched, found.casts) == ([], [], [])
    assert {node.verdict for node in found.nodes} == {"follows"}
    assert {"conv1d", "layer_norm", "linear", "gelu", "softmax"} <= {
        op for node in found.nodes for op in node.operations
    }


def flipped(path: Path, name: str, dtype: str, folder: Path) -> Path:
    """Export a network, then change one node's dtype, with casts around it.

    Another tool could write such a file.
    """
    model = onnx.load(path)
    node, place = next(
        (node, place) for place, node in enumerate(model.graph.node) if node.name == name
    )
    before, after = [], []
    was = next(each for each in check(path, PRECISION).nodes if each.name == name).dtype
    for position, given in enumerate(node.input):
        node.input[position] = f"{name}_in_{position}"
        before.append(
            helper.make_node("Cast", [given], [f"{name}_in_{position}"], to=NUMBERS[dtype])
        )
    for position, result in enumerate(node.output):
        node.output[position] = f"{name}_out_{position}"
        after.append(
            helper.make_node("Cast", [f"{name}_out_{position}"], [result], to=NUMBERS[was])
        )
    nodes = list(model.graph.node)
    nodes[place : place + 1] = [*before, node, *after]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, folder / "flipped.onnx")
    return folder / "flipped.onnx"


PRECISION = Precision(Policy("O1", "float16"), RULES)


def test_each_node_that_is_flipped_by_hand_is_named(tmp_path: Path) -> None:
    path = exported(tmp_path, PRECISION)
    nodes = check(path, PRECISION).nodes
    assert len(nodes) > 15
    for node in nodes:
        other = "float16" if node.dtype == "float32" else "float32"
        found = check(flipped(path, node.name, other, tmp_path), PRECISION)
        assert differing(found) == [node.name]
        told = next(each for each in found.nodes if each.name == node.name)
        assert (told.dtype, told.expected, told.layer) == (other, node.dtype, node.layer)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_older_exporter_names_layers_in_the_names_of_nodes(tmp_path: Path) -> None:
    precision = Precision(Policy("O1", "float16"), LayerRules({"**.wo": "float32"}))
    found = check(exported(tmp_path, precision, dynamo=False, opset_version=20), precision)
    assert (differing(found), found.unmatched) == ([], [])
    assert {"blocks.1.wo", "blocks.0.norm", "head"} <= {node.layer for node in found.nodes}


def test_what_neither_onnx_nor_its_runtime_takes_is_named(tmp_path: Path) -> None:
    precision = Precision(Policy("O3", "float16"))
    path = exported(tmp_path, precision, nn.LayerNorm(16))
    with pytest.raises(Exception, match="bound to different types"):
        onnxruntime.InferenceSession(path)
    (norm,) = check(path, precision).nodes
    assert (norm.verdict, norm.why) == (
        "invalid",
        "its inputs have several dtypes, which ONNX does not allow",
    )
    precision = Precision(Policy("O1", "bfloat16"))
    path = exported(tmp_path, precision, nn.Conv1d(3, 3, 3), opset_version=20)
    with pytest.raises(Exception, match="This is an invalid model"):
        onnxruntime.InferenceSession(path)
    (convolution,) = check(path, precision).nodes
    assert (convolution.verdict, convolution.why) == (
        "invalid",
        "operator set 20 has no Conv in bfloat16",
    )


@pytest.mark.parametrize("folded", [True, False])
def test_a_convolution_that_the_exporter_folds_a_norm_into(tmp_path: Path, folded: bool) -> None:
    precision = Precision(Policy("O1", "float16"))
    network = nn.Sequential(nn.Conv1d(3, 3, 3), nn.BatchNorm1d(3))
    path = exported(tmp_path, precision, network, optimize=folded)
    found = check(path, precision)
    assert [node.verdict for node in found.nodes] == (
        ["invalid"] if folded else ["follows", "follows"]
    )
    if folded:
        with pytest.raises(Exception, match="bound to different types"):
            onnxruntime.InferenceSession(path)
    else:
        onnxruntime.InferenceSession(path)


def test_an_operation_that_the_exporter_writes_as_others_is_no_difference(tmp_path: Path) -> None:
    precision = Precision(Policy("O2", "float16"))
    found = check(exported(tmp_path, precision, nn.RMSNorm(16)), precision)
    assert {node.verdict for node in found.nodes} == {"unclear"}
    assert found.follows


def test_a_file_that_was_exported_outside_a_region_differs(tmp_path: Path) -> None:
    path = exported(tmp_path, Precision(Policy("O0")))
    found = check(path, Policy("O1", "float16"))
    assert {node.operations for node in found.nodes if node.verdict == "differs"} == {
        ("conv1d",),
        ("linear",),
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("newer", "verdict"),
    [(True, "wider inside"), (False, "differs")],
    ids=["exporter", "older exporter"],
)
def test_what_has_no_low_kernel_where_it_is_exported(
    tmp_path: Path, newer: bool, verdict: str
) -> None:
    policy, path = Policy("O1", "float16"), tmp_path / "model.onnx"
    with policy_region(policy):
        torch.onnx.export(
            nn.LSTM(8, 8).eval(),
            (torch.rand(3, 1, 8),),
            str(path),
            dynamo=newer,
            opset_version=20,
            verbose=False,
        )
    (found,) = (node for node in check(path, policy).nodes if node.type == "LSTM")
    assert (found.dtype, found.expected, found.verdict) == ("float32", "float16", verdict)
