"""`unamp.onnx` holds graphs against policies: each node is judged by the file alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx_graphs import F16, F32, cast, model, node, saved, weight

from unamp import LayerRule, LayerRules, Policy, Precision
from unamp.onnx import CheckedModel, CheckedNode, check

O1 = Policy("O1", "float16")
LINEAR = [("head", "torch.nn.modules.linear.Linear"), ("linear", "aten.linear.default")]


@pytest.fixture
def checked(tmp_path: Path) -> Any:
    def make(made: ModelProto, precision: Precision | Policy = O1) -> CheckedModel:
        return check(saved(made, tmp_path), precision)

    return make


def one(checked: CheckedModel, name: str) -> CheckedNode:
    return next(node for node in checked.nodes if node.name == f"{name}_node")


def test_a_matrix_product_in_the_low_dtype_and_in_float32(checked: Any) -> None:
    low = checked(
        model([cast("x", "l", F16), node("MatMul", "l w", "y")], "y", [weight("w", np.float16)])
    )
    wide = checked(model([node("MatMul", "x w", "y")], "y", [weight("w")]))
    assert (one(low, "y").dtype, one(low, "y").verdict, low.follows) == ("float16", "follows", True)
    assert (one(wide, "y").dtype, one(wide, "y").expected) == ("float32", "float16")
    assert (one(wide, "y").verdict, wide.follows) == ("differs", False)


def test_what_must_stay_in_float32(checked: Any) -> None:
    found = checked(model([cast("x", "l", F16), node("Softmax", "l", "y")], "y"))
    assert (one(found, "y").dtype, one(found, "y").expected, found.follows) == (
        "float16",
        "float32",
        False,
    )


def test_labels_say_which_operation_a_node_is_part_of(checked: Any) -> None:
    nodes = [node("MatMul", "x w", "m", LINEAR), node("Add", "m b", "y", LINEAR)]
    made = model(nodes, "y", [weight("w"), weight("b", shape=(4,))])
    found = checked(made, Policy("O1", "float16", deny="linear", allow=("matmul", "add")))
    assert [(each.operations, each.layer, each.verdict) for each in found.nodes] == [
        (("linear",), "head", "follows")
    ] * 2
    found = checked(made, Policy("O1", "float16", deny="matmul"))
    assert [each.verdict for each in found.nodes] == ["differs", "differs"]


def test_without_labels_a_type_may_be_several_operations(checked: Any) -> None:
    made = model([node("MatMul", "x w", "y")], "y", [weight("w")])
    assert (
        one(
            checked(made, Policy("O1", "float16", deny=("linear", "matmul", "mm", "bmm"))), "y"
        ).verdict
        == "follows"
    )
    found = checked(made, Policy("O1", "float16", deny="linear"))
    assert one(found, "y").verdict == "unclear"
    assert one(found, "y").why == "the file does not say which operation it is part of"
    assert found.follows, (
        "nothing shows that it differs; it is said that nothing shows that it follows"
    )


def rules(*pairs: tuple[str, Policy | str]) -> Precision:
    return Precision(O1, LayerRules([LayerRule(pattern, policy) for pattern, policy in pairs]))


@pytest.mark.parametrize(
    "pattern", ["head", "h*", ":Linear", ":torch.nn.modules.linear.Linear", "head:Linear"]
)
def test_a_rule_for_a_layer_counts_in_it(checked: Any, pattern: str) -> None:
    found = checked(
        model([node("MatMul", "x w", "y", LINEAR)], "y", [weight("w")]), rules((pattern, "float32"))
    )
    assert found.follows
    assert one(found, "y").expected == "float32"


def test_the_innermost_layer_with_a_rule_counts_and_of_its_rules_the_last(checked: Any) -> None:
    inside = [
        ("block", "Block"),
        ("block.head", "torch.nn.modules.linear.Linear"),
        ("linear", "aten.linear.default"),
    ]
    made = model([node("MatMul", "x w", "y", inside)], "y", [weight("w")])
    assert checked(made, rules(("block", "float32"))).follows
    assert not checked(made, rules(("block.head", O1), ("block", "float32"))).follows
    assert checked(made, rules(("block.head", O1), ("block.*", "float32"))).follows


def test_a_rule_that_matches_no_layer_is_told(checked: Any) -> None:
    made = model(
        [cast("x", "l", F16), node("MatMul", "l w", "y", LINEAR)], "y", [weight("w", np.float16)]
    )
    found = checked(made, rules(("haed", "float32")))
    assert (found.unmatched, found.follows) == (["haed"], False)
    assert checked(made).follows


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("/blocks.1/wo/MatMul", "blocks.1.wo"),
        ("/layer/layer.1/wo/MatMul", "layer.1.wo"),
        ("/wo/MatMul", "wo"),
        ("/MatMul", ""),
    ],
)
def test_names_say_the_layer_where_there_are_no_labels(checked: Any, name: str, layer: str) -> None:
    made = model([node("MatMul", "x w", "y", name=name)], "y", [weight("w")])
    found = checked(made, rules(("**.wo", "float32")))
    assert found.nodes[0].layer == layer
    assert found.follows == (layer != "")
    by_class = checked(made, rules((":Linear", "float32"))).nodes[0]
    assert by_class.verdict == ("unclear" if layer else "differs"), (
        "names do not say of which class a layer is"
    )


def test_where_nobody_says_the_layer_a_node_is_judged_by_what_all_rules_agree_on(
    checked: Any,
) -> None:
    nodes = [cast("x", "l", F16), node("MatMul", "l w", "m"), node("Softmax", "m", "y")]
    found = checked(model(nodes, "y", [weight("w", np.float16)]), rules(("a", "float32")))
    assert (one(found, "m").verdict, one(found, "m").layer) == ("unclear", None)
    assert one(found, "m").why == "the file does not say which layer it is part of"
    assert one(found, "y").verdict == "differs", "float32 by the policy and by the rule"
    assert found.unmatched == ["a"]


def test_a_node_that_agrees_with_its_inputs_is_judged_by_them_before_casts_that_came_later(
    checked: Any,
) -> None:
    add = [("add", "aten.add.Tensor")]
    own = [
        cast("x", "l", F16, [("_to_copy", "aten._to_copy.default")]),
        node("Add", "l l", "y", add),
    ]
    assert one(checked(model(own, "y")), "y").verdict == "follows", "the network casts itself"
    later = [cast("x", "l", F16), node("Add", "l l", "y", add)]
    found = one(checked(model(later, "y")), "y")
    assert (found.dtype, found.expected, found.verdict) == ("float16", "float32", "differs")


def test_without_labels_nobody_knows_whose_casts_they_are(checked: Any) -> None:
    assert (
        one(checked(model([cast("x", "l", F16), node("Add", "l l", "y")], "y")), "y").verdict
        == "follows"
    )


def test_an_operation_of_several_nodes_may_be_wider_inside(checked: Any) -> None:
    norm = [("norm", "RMSNorm"), ("rms_norm", "aten.rms_norm.default")]
    nodes = [
        cast("x", "l", F16, [("_to_copy", "aten._to_copy.default")]),
        cast("l", "wide", F32, norm),
        node("Mul", "wide wide", "square", norm),
        cast("square", "y", F16, norm),
    ]
    found = checked(model(nodes, "y"), Policy("O1", "float16", allow="rms_norm"))
    assert (one(found, "square").verdict, found.follows) == ("wider inside", True)
    nodes[1] = cast("l", "wide", F32)
    found = checked(model(nodes, "y"), Policy("O1", "float16", allow="rms_norm"))
    assert one(found, "square").verdict == "differs", (
        "a cast in front of the operation is not inside"
    )
    found = checked(model(nodes, "y"), Policy("O1", "float16", deny="rms_norm"))
    assert found.follows


def test_inputs_that_do_not_agree(checked: Any) -> None:
    found = checked(model([cast("x", "l", F16), node("MatMul", "l w", "y")], "y", [weight("w")]))
    assert one(found, "y").dtype == "float16 and float32"
    assert (one(found, "y").verdict, found.follows) == ("invalid", False)
    assert one(found, "y").why == "its inputs have several dtypes, which ONNX does not allow"


def test_a_dtype_that_the_operator_set_does_not_have(checked: Any) -> None:
    nodes = [
        cast("x", "l", TensorProto.BFLOAT16),
        cast("w", "v", TensorProto.BFLOAT16),
        node("Conv", "l v", "y"),
    ]
    made = model(nodes, "y", [weight("w")])
    found = checked(made, Policy("O1", "bfloat16"))
    assert (one(found, "y").verdict, found.follows) == ("invalid", False)
    assert one(found, "y").why == "operator set 20 has no Conv in bfloat16"
    made.opset_import[0].version = 22
    assert checked(made, Policy("O1", "bfloat16")).follows


def test_statistics_may_be_wider_than_what_they_normalise(checked: Any) -> None:
    names = ["scale", "shift", "mean", "var"]
    weights = [
        weight(name, np.float32 if name in ("mean", "var") else np.float16, (4,)) for name in names
    ]
    nodes = [cast("x", "l", F16), node("BatchNormalization", f"l {' '.join(names)}", "y")]
    found = checked(model(nodes, "y", weights), Policy("O3", "float16"))
    assert (one(found, "y").dtype, one(found, "y").verdict) == ("float16", "follows")
    found = checked(model(nodes, "y", weights), Policy("O1", "float16", allow="relu"))
    assert one(found, "y").verdict == "follows", "as wide as what is normalised"


def test_a_part_of_an_operation_that_stays_in_float32(checked: Any) -> None:
    power = [("norm", "RMSNorm"), ("pow", "aten.pow.Tensor_Scalar")]
    own = checked(
        model([node("Pow", "x w", "y", power)], "y", [weight("w")]),
        Policy("O2", "float16", deny="rms_norm"),
    )
    assert (one(own, "y").verdict, one(own, "y").expected) == ("unclear", "float16")
    nodes = [cast("x", "l", F16), cast("l", "u", F32), node("Pow", "u w", "y", power)]
    assert (
        one(checked(model(nodes, "y", [weight("w")]), Policy("O2", "float16")), "y").verdict
        == "differs"
    )
    nodes[1] = cast("l", "u", F32, [*power[:1], ("_to_copy", "aten._to_copy.default")])
    found = one(checked(model(nodes, "y", [weight("w")]), Policy("O2", "float16")), "y")
    assert (found.verdict, found.why) == ("wider inside", "its inputs are rounded to float16 first")


def test_what_no_policy_casts(checked: Any) -> None:
    found = checked(
        model([node("MatMul", "x w", "y")], "y", [weight("w", np.float64)], TensorProto.DOUBLE)
    )
    assert (one(found, "y").verdict, one(found, "y").why) == ("follows", "no policy casts float64")


def test_a_banned_operation(checked: Any) -> None:
    loss = [("binary_cross_entropy", "aten.binary_cross_entropy.default")]
    found = checked(
        model([node("Log", "x", "y", loss)], "y"), Policy("O1", "float16", preset="torch-cuda")
    )
    assert (one(found, "y").expected, one(found, "y").verdict) == ("banned", "differs")


def test_an_operator_that_has_no_name(checked: Any) -> None:
    made = model(
        [
            node("Secret", "x", "y", domain="my.own"),
            node("FusedMatMul", "x x", "z", domain="com.microsoft"),
        ],
        "z",
    )
    found = checked(made)
    assert (one(found, "y").type, one(found, "y").verdict) == ("my.own.Secret", "unclear")
    assert (one(found, "z").type, one(found, "z").verdict) == (
        "com.microsoft.FusedMatMul",
        "differs",
    )


def test_a_graph_inside_another(checked: Any) -> None:
    branch = [
        helper.make_graph(
            [cast("x", "inner", F16), node("Softmax", "inner", name)],
            name,
            [],
            [helper.make_tensor_value_info(name, F16, None)],
        )
        for name in ("yes", "no")
    ]
    made = model(
        [
            node("If", "c", "y", then_branch=branch[0], else_branch=branch[1]),
            node("Relu", "y", "z"),
        ],
        "z",
    )
    made.graph.initializer.append(weight("c", np.bool_, ()))
    found = checked(made)
    assert [(each.name, each.dtype, each.verdict) for each in found.nodes] == [
        ("no_node", "float16", "differs"),
        ("yes_node", "float16", "differs"),
        ("z_node", "float16", "follows"),
    ]
    assert found.casts == [], "a cast in one branch is none in the other"


def test_a_dtype_that_the_file_claims_is_not_believed_where_it_can_be_seen(checked: Any) -> None:
    made = model([node("Relu", "x", "h"), node("MatMul", "h w", "y")], "y", [weight("w")])
    made.graph.value_info.append(helper.make_tensor_value_info("h", F16, None))
    assert one(checked(made), "y").dtype == "float32"


def test_casts_that_can_go(checked: Any) -> None:
    nodes = [
        cast("x", "same", F32),
        cast("x", "low", F16),
        cast("x", "twin", F16),
        cast("x", "unused", TensorProto.BFLOAT16),
        cast("low", "wide", F32),
        cast("wide", "undone", F16),
        *(
            node("Add", pair, f"s{place}")
            for place, pair in enumerate(["same wide", "low twin", "undone undone"])
        ),
    ]
    found = checked(model(nodes, "s0"))
    assert [tuple(each) for each in found.casts] == [
        ("same_node", "its input is float32 already"),
        ("twin_node", "low_node casts the same to float16"),
        ("unused_node", "nothing takes its result"),
        ("undone_node", "it undoes wide_node, which casts float16 to float32"),
    ]


def test_a_cast_down_and_up_rounds_and_stays(checked: Any) -> None:
    nodes = [cast("x", "low", F16), cast("low", "wide", F32), node("Relu", "wide", "y")]
    assert checked(model(nodes, "y")).casts == []


def test_weights_that_are_stored_wide(checked: Any) -> None:
    weights = [weight(name) for name in ("idle", "also_used", "wide")]
    nodes = [
        cast("x", "l", F16),
        *(cast(name, f"{name}_low", F16) for name in ("idle", "also_used")),
        node("MatMul", "l idle_low", "a"),
        node("MatMul", "l also_used_low", "b"),
        node("Add", "also_used wide", "c"),
    ]
    found = checked(model(nodes, "a", weights))
    assert [tuple(each) for each in found.weights] == [("idle", "float32", "float16", 32)]


def test_a_policy_whose_lists_depend_on_the_device_is_refused(checked: Any) -> None:
    with pytest.raises(ValueError, match="preset 'native' has no lists of its own"):
        checked(ModelProto(), Policy("O1", preset="native"))
    with pytest.raises(ValueError, match="preset 'native' has no lists of its own"):
        checked(ModelProto(), rules(("a", Policy("O1", preset="native"))))
