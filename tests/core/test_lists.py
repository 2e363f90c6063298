"""Groups and wildcards in allow and deny lists stand for their operations."""

from __future__ import annotations

import pytest

import unamp
from unamp import Policy, Rule, vocabulary
from unamp.lists import words

NORMS = tuple(sorted(op.name for op in vocabulary().values() if op.group == "norm"))


def test_everything_denied_is_everything_in_float32() -> None:
    for level in ("OD", "O1", "O2", "O3"):
        for preset in ("unamp", "paddle", "apex"):
            policy = Policy(level, "bfloat16", preset=preset, deny="*")
            assert policy == Policy("OD", "bfloat16", deny=["*", "linear"])
            for op, rule in policy.rules.items():
                assert rule is (Rule.UNTOUCHED if vocabulary()[op].keeps_its_meaning else Rule.FP32)
    assert policy.reason("torch.nn.functional.linear").origin == "your deny list: *"
    assert not Policy("O0", deny="*").active


def test_what_is_allowed_beside_everything_denied_runs_low() -> None:
    policy = Policy("O2", allow=["linear", "group:matmul"], deny="*")
    low = {op for op, rule in policy.rules.items() if rule is Rule.LOW}
    assert low == {"linear", *vocabulary().groups["matmul"]}


def test_everything_allowed_is_level_o3() -> None:
    assert Policy("O1", allow="*", deny="softmax") == Policy("O3", deny="softmax")


def test_groups_and_wildcards_are_their_operations() -> None:
    assert Policy(deny="group:norm") == Policy(deny=NORMS)
    assert Policy(deny="group:norm").deny == NORMS
    linalg = [op for op in vocabulary() if op.startswith("linalg_")]
    assert Policy(allow="linalg_*").allow == tuple(sorted(linalg))
    assert Policy(deny=["*_norm"]).rules["layer_norm"] is Rule.FP32
    with unamp.auto_cast(custom_black_list={"group:softmax", "matmul_v2"}) as region:
        assert region.policy.deny == tuple(sorted({"matmul", *vocabulary().groups["softmax"]}))


CASTS = ("cast", "bitcast", "cpu")


@pytest.mark.parametrize(
    "name",
    [*CASTS, "torch.Tensor.cpu", "tf.bitcast", "ops.cast", "group:cast", "bitc*", ("exp", "cpu")],
)
@pytest.mark.parametrize("argument", ["allow", "deny"])
def test_a_cast_or_a_move_can_be_on_no_list(argument: str, name: object) -> None:
    with pytest.raises(
        ValueError,
        match=rf"^{argument}: .* is a cast or a move \(bitcast, cast, cpu\), which follows no list",
    ):
        Policy(**{argument: name})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "lists",
    [{}, {"allow": "*"}, {"deny": "*"}, {"allow": "*c*"}, {"deny": "*cast*"}, {"deny": "c*"}],
)
@pytest.mark.parametrize("preset", ["unamp", "apex"])
@pytest.mark.parametrize("level", ["OD", "O1", "O2", "O3"])
def test_casts_and_moves_are_untouched_whatever_a_word_for_many_a_level_or_a_preset_says(
    level: str, preset: str, lists: dict[str, str]
) -> None:
    policy = Policy(level, preset=preset, **lists)  # type: ignore[arg-type]
    for op in CASTS:
        assert policy.reason(op) == (op, Rule.UNTOUCHED, "casts and moves follow no list", "")
        assert op not in (*policy.allow, *policy.deny)


def test_a_word_for_many_means_all_others_that_fit() -> None:
    allowed = set(Policy(allow="*cast*").allow)
    assert allowed == {op for op in vocabulary() if "cast" in op} - {"cast", "bitcast"}
    assert "broadcast_to" in allowed


def test_a_name_goes_before_a_word_for_many() -> None:
    policy = Policy("O2", allow="layer_norm", deny="group:norm")
    assert (policy.rules["layer_norm"], policy.rules["batch_norm"]) == (Rule.LOW, Rule.FP32)
    with pytest.raises(ValueError, match="in allow and in deny: .*batch_norm"):
        Policy(allow="batch_*", deny="group:norm")


def test_policies_say_the_words() -> None:
    assert repr(Policy("O2", "bfloat16", deny="*")) == "Policy('OD', 'bfloat16', deny='*')"
    assert (
        repr(Policy(deny=[*NORMS, "exp"])) == "Policy('O1', 'float16', deny=('group:norm', 'exp'))"
    )
    assert Policy(deny="group:norm").reason("layer_norm").origin == "your deny list: group:norm"
    assert Policy(deny="layer_norm").reason("layer_norm").origin == "your deny list"
    for policy in (
        Policy(deny="*", allow="exp"),
        Policy(allow="group:norm", deny="linalg_*"),
        Policy(allow="*"),
    ):
        assert eval(repr(policy), {"Policy": Policy}) == policy
    assert words(("exp", "log")) == ("exp", "log")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"deny": "group:nor"}, "unknown group in deny 'nor'; did you mean 'norm'"),
        ({"allow": "group:"}, "unknown group in allow ''"),
        ({"deny": "zz*"}, "deny: no operation is called 'zz\\*'"),
        ({"deny": "[a-z]*"}, "deny: no operation is called"),
        ({"allow": "*", "deny": ["*"]}, "allow and deny are both '\\*'"),
        ({"preset": "native", "deny": "*"}, "takes no lists"),
    ],
)
def test_bad_words(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Policy(**arguments)  # type: ignore[arg-type]
