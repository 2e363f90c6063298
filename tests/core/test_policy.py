"""`Policy` decides by its level, lists and preset, and behaves as a value."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from unamp import LEVELS, PRESETS, Policy, Rule, vocabulary
from unamp.presets import preset as load_preset

UNTOUCHED, LOW, FP32, WIDEST, BANNED = Rule.UNTOUCHED, Rule.LOW, Rule.FP32, Rule.WIDEST, Rule.BANNED

# For each list of torch's CUDA preset, one operation: allow list, deny list, promote list, banned,
# on no list, and on no list with a meaning that no level changes.
PLACES = ("conv2d", "softmax", "addcmul", "binary_cross_entropy", "relu", "reshape")

DECIDED = {
    ("O0", False): (UNTOUCHED, UNTOUCHED, UNTOUCHED, UNTOUCHED, UNTOUCHED, UNTOUCHED),
    ("OD", False): (LOW, FP32, FP32, FP32, FP32, UNTOUCHED),
    ("O1", False): (LOW, FP32, WIDEST, BANNED, WIDEST, UNTOUCHED),
    ("O1", True): (LOW, FP32, WIDEST, BANNED, WIDEST, UNTOUCHED),
    ("O2", False): (LOW, FP32, LOW, BANNED, LOW, UNTOUCHED),
    ("O2", True): (LOW, FP32, WIDEST, BANNED, WIDEST, UNTOUCHED),
    ("O3", False): (LOW, LOW, LOW, LOW, LOW, UNTOUCHED),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("level", "promote"), DECIDED)
def test_every_level_decides_as_the_table_says(level: str, promote: bool, dtype: str) -> None:
    policy = Policy(level, dtype, preset="torch-cuda", promote=promote)
    assert tuple(policy.decide(op) for op in PLACES) == DECIDED[level, promote]


def test_in_float32_nothing_is_cast_down_and_nothing_is_banned() -> None:
    widened = {LOW: FP32, BANNED: FP32, Rule.NARROWEST: WIDEST}
    for preset in PRESETS:
        for level in LEVELS if preset != "native" else ():
            low, wide = (
                Policy(level, dtype, preset=preset).rules for dtype in ("float16", "float32")
            )
            assert wide == {op: widened.get(rule, rule) for op, rule in low.items()}
    decided = [Policy(level, "float32", preset="torch-cuda").decide("relu") for level in LEVELS]
    assert decided == [UNTOUCHED, FP32, WIDEST, FP32, FP32]


def test_in_float32_the_lists_mean_what_they_mean_and_say_so() -> None:
    policy = Policy("O2", "fp32", allow="softmax", deny="relu")
    assert policy == Policy.from_toml(policy.to_toml())
    assert repr(
        policy
    ) == "Policy('O2', 'float32', allow='softmax', deny='relu')" or "float32" in repr(policy)
    assert policy.reason("softmax") == ("softmax", FP32, "your allow list", "")
    assert Policy(dtype="float32", preset="torch-cuda").reason("binary_cross_entropy").advice == ""


def test_tensorflows_infer_and_clear_lists_follow_low_inputs_at_o1() -> None:
    found = {level: Policy(level, "float16", preset="tensorflow").rules for level in LEVELS}
    assert [found["O1"][op] for op in ("bias_add", "relu", "sum", "gelu")] == [
        Rule.NARROWEST,
        Rule.NARROWEST,
        FP32,
        WIDEST,
    ]
    assert Policy("O1", "bfloat16", preset="tensorflow").decide("sum") is Rule.NARROWEST
    assert [level for level, rules in found.items() if Rule.NARROWEST in rules.values()] == ["O1"]
    assert not [name for name in PRESETS if name not in ("tensorflow", "native") and _follows(name)]


def _follows(name: str) -> bool:
    return Rule.NARROWEST in Policy("O1", preset=name).rules.values()


@pytest.mark.parametrize("op", PLACES)
@pytest.mark.parametrize("level", LEVELS)
def test_a_users_entry_moves_an_operation_whatever_list_it_was_on(level: str, op: str) -> None:
    allowed, denied = (
        Policy(level, allow=op, preset="torch-cuda"),
        Policy(level, deny=op, preset="torch-cuda"),
    )
    assert allowed.decide(op) is (UNTOUCHED if level == "O0" else LOW)
    assert denied.decide(op) is (UNTOUCHED if level == "O0" else FP32)


@pytest.mark.parametrize("level", LEVELS)
def test_a_users_entry_leaves_all_other_operations_alone(level: str) -> None:
    usual, changed = Policy(level), Policy(level, allow="softmax", deny="conv2d")
    assert {op for op in vocabulary() if usual.decide(op) is not changed.decide(op)} <= {
        "softmax",
        "conv2d",
    } | _made_of("conv2d")


def _made_of(part: str) -> set[str]:
    return {op.name for op in vocabulary().values() if part in op.parts}


def test_the_shorter_deny_list_counts_at_o2_only() -> None:
    lists = load_preset("paddle")
    assert lists.deny_o2 is not None
    shortened = lists.deny - lists.deny_o2 - lists.allow
    assert "softmax" in shortened
    for op in shortened:
        assert Policy("O1", preset="paddle").decide(op) is FP32
        assert Policy("O2", preset="paddle").decide(op) is not FP32
    for op in lists.deny_o2:
        assert Policy("O2", preset="paddle").decide(op) is FP32


def test_the_default_preset_bans_nothing() -> None:
    assert Policy().decide("binary_cross_entropy") is FP32
    assert BANNED not in Policy().rules.values()


def test_denying_a_part_denies_the_whole() -> None:
    assert Policy(allow="lstm").decide("lstm") is LOW
    for level in ("OD", "O1", "O2", "O3"):
        assert Policy(level, deny="linear").decide("lstm") is FP32
        assert "linear" in Policy(level, deny="linear").reason("lstm").origin


def test_an_explicit_entry_for_the_whole_is_stronger_than_one_for_a_part() -> None:
    assert Policy(allow="lstm", deny="linear").decide("lstm") is LOW


def test_allowing_a_part_says_nothing_about_the_whole() -> None:
    assert Policy("OD", allow="softmax").decide("transformer_encoder_layer") is Policy("OD").decide(
        "transformer_encoder_layer"
    )


def test_a_collective_name_stands_for_its_members() -> None:
    members = vocabulary()["interpolate"].members
    assert members
    assert Policy(deny="interpolate").deny == tuple(sorted(["interpolate", *members]))
    assert {Policy(deny="interpolate").decide(member) for member in members} == {FP32}
    with pytest.raises(ValueError, match=f"in allow and in deny: {members[0]};"):
        Policy(allow=members[0], deny="interpolate")


def test_reason_says_where_a_rule_comes_from() -> None:
    assert Policy(deny="linear").reason("linear").origin == "your deny list"
    assert Policy(preset="apex").reason("linear").origin == "preset apex: allow list"
    assert "O2" in Policy("O2").reason("relu").origin
    assert Policy(enabled=False).reason("relu").origin == "disabled"
    assert Policy(preset="torch-cuda").reason("binary_cross_entropy").advice


def test_a_policy_takes_any_frameworks_spelling() -> None:
    policy = Policy(
        allow=["paddle.elementwise_add", "AddV2", "tf.nn.softmax"],
        deny="torch.nn.functional.linear",
    )
    assert policy.allow == ("add", "softmax")
    assert policy.deny == ("linear",)
    assert policy.decide("paddle.elementwise_add") is LOW


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"level": "O4"}, ValueError, "unknown level 'O4'; valid: O0, OD, O1, O2, O3"),
        ({"level": 1}, TypeError, "level must be a string, not int; valid: O0, OD"),
        ({"allow": b"softmax"}, TypeError, "got bytes: b'softmax'"),
        (
            {"dtype": "float64"},
            ValueError,
            "'float64' is no dtype of a policy; valid: 'float16', 'bfloat16', 'float32'",
        ),
        ({"dtype": "int8"}, ValueError, "valid: 'float16', 'bfloat16'"),
        ({"dtype": 16}, TypeError, "dtype must be"),
        (
            {"preset": "pytorch"},
            ValueError,
            "unknown preset 'pytorch'; did you mean 'torch-cuda' or 'torch-cpu'",
        ),
        ({"preset": None}, TypeError, "preset must be a string, not NoneType; valid: unamp, "),
        ({"allow": "matmull"}, ValueError, "unknown operation 'matmull'; did you mean .*'matmul'"),
        ({"deny": ["linear", "qqqqqq"]}, ValueError, "unknown operation 'qqqqqq'"),
        ({"allow": 3}, TypeError, "allow takes operation names"),
        ({"deny": None}, TypeError, "deny takes operation names"),
        (
            {"allow": ["add", "linear"], "deny": ["linear", "mul"]},
            ValueError,
            "in allow and in deny: linear;",
        ),
        (
            {"allow": "matmul", "deny": "paddle.matmul_v2"},
            ValueError,
            "in allow and in deny: matmul;",
        ),
        ({"preset": "native", "allow": "linear"}, ValueError, "takes no lists"),
        ({"preset": "native", "deny": "linear"}, ValueError, "takes no lists"),
        ({"enabled": 1}, TypeError, "enabled must be True or False, not int"),
        ({"promote": "yes"}, TypeError, "promote must be True or False"),
        ({"widen_results": None}, TypeError, "widen_results must be True or False"),
        ({"cache": 0}, TypeError, "cache must be True or False"),
        (
            {"custom_white_list": "add"},
            TypeError,
            "Policy has no argument 'custom_white_list'; did you mean 'allow'",
        ),
        ({"opt_level": "O1"}, TypeError, "did you mean 'level'"),
    ],
)
def test_bad_arguments_are_named_with_the_valid_choices(
    arguments: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Policy(**arguments)  # type: ignore[arg-type]


def test_an_unknown_operation_is_an_error_when_asked_for() -> None:
    with pytest.raises(ValueError, match="unknown operation 'conv2dd'; did you mean 'conv2d'"):
        Policy().decide("conv2dd")


def test_native_has_no_lists_until_a_framework_is_named() -> None:
    policy = Policy(preset="native", dtype="bfloat16")
    with pytest.raises(ValueError, match="name a framework"):
        policy.decide("linear")
    assert policy.delegated("torch", "cpu") == Policy(preset="torch-cpu", dtype="bfloat16")
    assert policy.delegated("torch", "gpu") == Policy(preset="torch-cuda", dtype="bfloat16")
    assert policy.delegated("no such framework", "cpu") is None
    assert Policy().delegated("torch", "cpu") == Policy()


# ---- a value


def test_a_policy_does_not_change() -> None:
    policy = Policy()
    with pytest.raises(AttributeError, match="does not change"):
        policy.level = "O2"
    with pytest.raises(AttributeError, match="does not change"):
        del policy.level
    assert policy == Policy()


def test_replace_changes_what_it_is_told_and_checks_it() -> None:
    assert Policy("O2", deny="linear").replace(level="O1") == Policy("O1", deny="linear")
    with pytest.raises(ValueError, match="unknown level"):
        Policy().replace(level="O9")


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Policy(), "Policy('O1', 'float16')"),
        (Policy("O2", "bf16", deny="linear"), "Policy('O2', 'bfloat16', deny=('linear',))"),
        (
            Policy(preset="paddle", enabled=False),
            "Policy('O1', 'float16', preset='paddle', enabled=False)",
        ),
    ],
)
def test_repr_is_short_and_says_what_differs_from_the_default(policy: Policy, text: str) -> None:
    assert repr(policy) == text


def test_a_policy_is_equal_to_policies_only() -> None:
    assert Policy() != "Policy('O1', 'float16')"
    assert Policy() != Policy(cache=False)
    assert {Policy(): "found"}[Policy("O1", "fp16", [], set())] == "found"


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_a_pickled_policy_is_found_in_a_dictionary_of_another_process(seed: str) -> None:
    policy = Policy(
        "O2", "bfloat16", allow="softmax", deny=["linear", "add"], preset="paddle", promote=True
    )
    code = f"""
import pickle, sys
from unamp import Policy
policy = pickle.loads(sys.stdin.buffer.read())
assert {{{policy!r}: True}}[policy]
sys.stdout.buffer.write(pickle.dumps(policy))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(policy),
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    back = pickle.loads(done.stdout)
    assert back == policy
    assert hash(back) == hash(policy)


# ---- properties

OPS = sorted(vocabulary())
LISTED = [op for op in OPS if not vocabulary()[op].is_cast]
WITH_LISTS = [name for name in PRESETS if not load_preset(name).delegates]


def _with_members(ops: list[str]) -> set[str]:
    return set(ops).union(*(vocabulary()[op].members for op in ops))


@st.composite
def policies(draw: st.DrawFn, **fixed: object) -> Policy:
    listed = draw(st.lists(st.sampled_from(LISTED), max_size=8, unique=True))
    split = draw(st.integers(0, len(listed)))
    assume(not _with_members(listed[:split]) & _with_members(listed[split:]))
    arguments = {
        "level": draw(st.sampled_from(list(LEVELS))),
        "dtype": draw(st.sampled_from(["float16", "bfloat16"])),
        "allow": listed[:split],
        "deny": listed[split:],
        "preset": draw(st.sampled_from(WITH_LISTS)),
        "enabled": draw(st.booleans()),
        "promote": draw(st.booleans()),
        "widen_results": draw(st.booleans()),
        "cache": draw(st.booleans()),
    }
    return Policy(**{**arguments, **fixed})


@given(policies())
def test_a_policy_survives_pickling_and_its_own_repr(policy: Policy) -> None:
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy
    assert eval(repr(policy)) == policy
    assert hash(eval(repr(policy))) == hash(policy)


@given(policies())
def test_the_order_and_the_container_of_a_list_do_not_matter(policy: Policy) -> None:
    assert policy.replace(allow=frozenset(policy.allow), deny=list(reversed(policy.deny))) == policy


@given(policies(enabled=False) | policies(level="O0"))
def test_what_is_disabled_or_at_o0_touches_nothing(policy: Policy) -> None:
    assert not policy.active
    assert set(policy.rules.values()) == {UNTOUCHED}


@given(policies())
def test_the_users_lists_always_win(policy: Policy) -> None:
    if policy.active:
        assert {policy.decide(op) for op in policy.allow} <= {LOW}
        assert {policy.decide(op) for op in policy.deny} <= {FP32}


@given(policies(level="O3", enabled=True))
def test_o3_is_low_but_for_the_users_own_deny_list(policy: Policy) -> None:
    assert set(policy.rules.values()) <= {LOW, FP32, UNTOUCHED}
    denied = {op for op, rule in policy.rules.items() if rule is FP32}
    assert denied <= set(policy.deny).union(*(_made_of(part) for part in policy.deny))


@given(policies(level="O2", promote=False))
def test_o2_promotes_only_when_asked(policy: Policy) -> None:
    assert WIDEST not in policy.rules.values()


@given(policies(level="OD", enabled=True))
def test_od_runs_everything_off_the_allow_list_in_float32(policy: Policy) -> None:
    low = {op for op, rule in policy.rules.items() if rule is LOW}
    assert low <= set(policy.allow) | load_preset(policy.preset).listed("allow", policy.dtype)
    assert set(policy.rules.values()) <= {LOW, FP32, UNTOUCHED}


@given(policies(), st.sampled_from(OPS), st.data())
def test_every_spelling_gets_the_same_decision(
    policy: Policy, op: str, data: st.DataObject
) -> None:
    spellings = [
        f"{framework}.{s}"
        for framework, all_of_them in vocabulary()[op].spellings.items()
        for s in all_of_them
    ]
    if spellings:
        assert policy.decide(data.draw(st.sampled_from(spellings))) is policy.decide(op)


@given(policies())
def test_the_rules_and_the_reasons_agree_for_the_whole_vocabulary(policy: Policy) -> None:
    decisions = [policy.reason(op) for op in OPS]
    assert all(decision.origin for decision in decisions)
    assert {each.op: each.rule for each in decisions} == policy.rules
    assert list(policy.rules) == list(vocabulary())


def test_decide_and_reason_take_what_lists_take() -> None:
    policy = Policy("O1")
    for op in ("linear", "torch.nn.functional.linear", "nn.Linear"):
        assert policy.decide(op) is policy.decide("linear")
        assert policy.reason(op) == policy.reason("linear")
    for wrong in (["linear"], 3, None, {}, object()):
        for ask in (policy.decide, policy.reason):
            with pytest.raises(
                TypeError, match=r"op takes operation names, or a framework's functions.*got"
            ):
                ask(wrong)


def test_a_long_name_is_not_echoed_whole() -> None:
    long = "x" * 100_000
    for ask in (
        Policy().decide,
        lambda name: Policy(deny=name),
        lambda name: Policy(name),
        lambda name: Policy(preset=name),
    ):
        with pytest.raises(ValueError, match="unknown") as caught:
            ask(long)
        assert len(str(caught.value)) < 400


def test_a_policy_as_plain_values() -> None:
    policy = Policy("O2", "bfloat16", allow=["softmax"], deny="linear", promote=True)
    assert Policy.from_data(policy.to_data()) == policy
    with pytest.raises(ValueError, match="unknown or missing: levels"):
        Policy.from_data(policy.to_data() | {"levels": "O1"})
    with pytest.raises(TypeError, match="a policy is an object, not"):
        Policy.from_data(["O1"])  # type: ignore[arg-type]
