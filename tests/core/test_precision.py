"""Rules for layers and `precision.toml` are values: read, refused, and written back unchanged."""

from __future__ import annotations

import copy
import json
import pickle
import tomllib
import warnings
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from commanded import invoke
from hostile import cut, spoilt
from hypothesis import example, given
from hypothesis import strategies as st

import unamp
from unamp import LayerRule, LayerRules, Policy, Precision, _precision_toml
from unamp.layers.patterns import matches
from unamp.presets import preset_names, preset_versions

POLICY = Policy("O1", "bfloat16", deny=["group:norm", "exp"], promote=True)
RULES = LayerRules(
    [
        LayerRule("**.wo", "float32", "low", 'overflows: "66246"'),
        LayerRule("head", Policy("O3", "bfloat16", deny="linear")),
        LayerRule(":LayerNorm", Policy(deny="*")),
    ]
)
WHOLE = Precision(
    POLICY,
    RULES,
    reason="tuned on three batches",
    reasons={"exp": "beyond float16", "group:norm": "ä"},
)


# --- patterns -------------------------------------------------------------------------------------


class Base:
    pass


class Norm(Base):
    pass


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("encoder.0.norm", "encoder.0.norm", True),
        ("encoder.*.norm", "encoder.0.norm", True),
        ("encoder.*.norm", "encoder.0.x.norm", False),
        ("encoder.**.norm", "encoder.norm", True),
        ("encoder.**.norm", "encoder.0.x.norm", True),
        ("**.norm", "norm", True),
        ("**.norm", "xnorm", False),
        ("**", "a.b", True),
        ("a.**", "a", False),
        ("a.**", "a.b.c", True),
        ("*", "a.b", False),
        ("*", "", False),
        ("**", "", False),
        (":Norm", "", True),
        ("w*", "wo", True),
        ("a.b", "aXb", False),
        (":Norm", "anything", True),
        (":Base", "anything", True),
        ("a.*:Norm", "a.b", True),
        ("a.*:Norm", "b.b", False),
        (":Other", "anything", False),
        (f":{__name__}.Norm", "anything", True),
    ],
)
def test_patterns(pattern: str, name: str, fits: bool) -> None:
    assert matches(pattern, name, Norm()) is fits


def test_classes_stand_for_their_layers() -> None:
    (rule,) = LayerRules({Norm: "float32"})
    assert rule.pattern == f":{__name__}.Norm"
    assert matches(rule.pattern, "x", Norm())
    assert not matches(rule.pattern, "x", Base())


def test_several_stars_in_a_row_are_no_more_than_one() -> None:
    pattern, name = ".".join(["**"] * 40), ".".join(["layer"] * 40)
    assert not matches(f"{pattern}.head", name, Norm())
    assert matches(f"{pattern}.layer", name, Norm())
    assert matches(f"{name}.{pattern}", f"{name}.x", Norm())
    assert not matches(f"{name}.{pattern}", name, Norm())


@pytest.mark.parametrize("pattern", ["", "a..b", ".a", "a:", ":", ":a.", "a\nb", "a.:b"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(ValueError, match="is no pattern for layers"):
        LayerRules({pattern: "float32"})


# --- values ---------------------------------------------------------------------------------------


def test_rules_are_values() -> None:
    assert pickle.loads(pickle.dumps(RULES)) == RULES
    assert hash(LayerRules(list(RULES))) == hash(RULES)
    assert LayerRules({"a": "float32"}, result="low") == LayerRules(
        [LayerRule("a", "float32", "low")]
    )
    with pytest.raises(AttributeError, match="do not change"):
        RULES.x = 1  # type: ignore[attr-defined]


def test_what_is_no_rule() -> None:
    with pytest.raises(
        ValueError,
        match=r"must be 'float32' or an unamp.Policy, not 'float16'; say unamp.Policy\('O3'",
    ):
        LayerRules({"a": "float16"})
    with pytest.raises(TypeError, match="must be 'float32' or an unamp.Policy, not 1"):
        LayerRules({"a": 1})
    with pytest.raises(ValueError, match="unknown result 'high'"):
        LayerRules({"a": "float32"}, result="high")
    with pytest.raises(TypeError, match="a pattern is the name of layers"):
        LayerRules({1: "float32"})
    with pytest.raises(ValueError, match="has two rules"):
        LayerRules([LayerRule("a", "float32"), LayerRule("a", "float32")])
    with pytest.raises(ValueError, match="printable"):
        LayerRules([LayerRule("a", "float32", reason="\x1b[31m")])


def test_rules_as_json() -> None:
    assert LayerRules.from_json(RULES.to_json(indent=1)) == RULES
    other = '{"format": 1, "version": 1, "layers": []}'
    for text, says in (("{}", "'format' is missing"), ("[", "not JSON"), (other, "format is 1")):
        with pytest.raises(ValueError, match=says):
            LayerRules.from_json(text)


# --- files ----------------------------------------------------------------------------------------


def test_what_is_written_is_read() -> None:
    assert Precision.from_toml(WHOLE.to_toml()) == WHOLE
    assert Policy.from_toml(POLICY.to_toml()) == POLICY
    assert LayerRules.from_toml(RULES.to_toml()) == RULES
    assert tomllib.loads(Policy("O3", deny="*").to_toml())["policy"]["deny"] == ["*"]


@given(
    st.builds(
        Policy,
        st.sampled_from(sorted(unamp.LEVELS)),
        st.sampled_from(["float16", "bfloat16"]),
        st.lists(st.sampled_from(["linear", "add", "conv*", "group:activation"])),
        st.lists(st.sampled_from(["exp", "group:norm", "*", "softmax"])),
        st.sampled_from(["unamp", "paddle", "none"]),
        st.booleans(),
        st.booleans(),
    )
)
def test_every_policy_survives(policy: Policy) -> None:
    assert Policy.from_toml(policy.to_toml()) == policy


def test_policies_of_todays_traces_are_read() -> None:
    trace = unamp.Trace()
    trace.records.append(
        unamp.OpRecord("linear", "x", unamp.Rule.LOW, (), None, None, policy=POLICY)
    )
    (record,) = unamp.Trace.from_json(trace.to_json()).records
    assert record.policy is not None
    assert Policy.from_toml(record.policy.to_toml()) == POLICY


def test_a_file_that_says_more_than_is_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match="has rules for layers, too: read it with unamp.Precision"):
        Policy.from_toml(WHOLE.to_toml())
    with pytest.raises(ValueError, match="has a policy, too"):
        LayerRules.from_toml(WHOLE.to_toml())
    with pytest.raises(ValueError, match="has no policy"):
        Policy.from_toml('format = "unamp precision"\nversion = 1\n')


BY_HAND = """\
# Kept by hand; ask before changing.
format = "unamp precision"
version = 1

[policy]
level = "O1"  # as the paper
deny = [
    "exp",  # the second loss
    "softmax",
]

# T5's, again
[[layers]]
pattern = "**.wo"
policy = "float32"

[[layers]]
pattern = "head" # the last
policy = "float32"
"""


def test_comments_of_a_person_survive() -> None:
    assert Precision.from_toml(BY_HAND).to_toml(over=BY_HAND) == BY_HAND
    changed = Precision(
        Policy("O2", "bfloat16", deny=["exp", "add"]),
        LayerRules(
            [
                LayerRule("**.wo", "float32", "low", "tuned"),
                LayerRule("head", "float32"),
                LayerRule("new", "float32"),
            ]
        ),
    )
    text = changed.to_toml(over=BY_HAND)
    assert Precision.from_toml(text) == changed
    comments = [line.partition("#")[2] for line in BY_HAND.splitlines() if "#" in line]
    assert [comment for comment in comments if comment not in text] == []
    assert text.index('dtype = "bfloat16"') < text.index("# T5's, again")
    fewer = Precision(Policy(), LayerRules({"head": "float32"}))
    assert Precision.from_toml(fewer.to_toml(over=BY_HAND)) == fewer
    assert Precision.from_toml(WHOLE.to_toml(over=Precision(Policy()).to_toml())) == WHOLE
    in_one_line = f'{HEAD}layers = [{{pattern = "head", policy = "float32"}}] # one\n\n[policy]\n'
    assert Precision.from_toml(WHOLE.to_toml(over=in_one_line)) == WHOLE
    more = Precision(Policy(), LayerRules({"head": "float32", "new": "float32"}))
    assert Precision.from_toml(more.to_toml(over=in_one_line)) == more


HEAD = 'format = "unamp precision"\nversion = 1\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'format' is missing"),
        ('format = "unamp trace"\nversion = 1', "must be 'unamp precision', not 'unamp trace'"),
        ('format = "unamp precision"\nversion = 2', "version: 2 is not known"),
        (HEAD + "[policy]\nlevl = 'O1'", "policy: unknown field 'levl'"),
        (HEAD + "[policy]\nlevel = 'O9'", "unknown level 'O9'"),
        (HEAD + "[policy]\nlevel = 1", "policy, level: must be text, not int"),
        (HEAD + "[policy]\ndtype = 'float8'", "float8"),
        (HEAD + "[policy]\nenabled = 1", "policy, enabled: must be true or false, not int"),
        (HEAD + "[policy]\ndeny = ['expp']", "unknown operation 'expp'; did you mean 'exp'"),
        (HEAD + "[policy]\ndeny = 'exp'", "policy, deny: must be a list"),
        (HEAD + "[policy]\ndeny = [{op = 'exp'}]", "policy, deny 1: 'reason' is missing"),
        (HEAD + "[policy]\ndeny = [{op = 'exp', reason = \"\\u001b\"}]", "must be printable text"),
        (HEAD + "[[layers]]\npattern = 'a'", "layers 1: 'policy' is missing"),
        (
            HEAD + "[[layers]]\npattern = 'a'\npolicy = 'float16'",
            "must be 'float32' or an unamp.Policy",
        ),
        (
            HEAD + "[[layers]]\npattern = 'a'\npolicy = {level = 'O1', lists = 1}",
            "layers 1, policy: unknown field 'lists'",
        ),
        (
            HEAD + "[[layers]]\npattern = 'a'\npolicy = {reason = 'x'}",
            "write it beside the pattern",
        ),
        (HEAD + "[layers]\na = 'float32'", "layers: must be a list"),
        (HEAD + "x = " + "[" * 100_000, "nested too deeply"),
        (HEAD + "x = '" + "a" * 2_000_000 + "'", "more than"),
        (HEAD + ".".join(["a"] * 400_000) + " = 1", "nested too deeply"),
        (HEAD + "[" + " . ".join(['"a"', "'b'"] * 50_000) + "]", "nested too deeply"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Precision.from_toml(text)


def test_reasons_belong_to_entries() -> None:
    with pytest.raises(ValueError, match="reason for 'add', which is on no list"):
        Precision(POLICY, reasons={"add": "why"})
    with pytest.raises(ValueError, match="reason for 'group:conv', which is on no list"):
        Precision(POLICY, reasons={"group:conv": "why"})
    with pytest.raises(ValueError, match="unknown group in reasons 'conf'"):
        Precision(POLICY, reasons={"group:conf": "why"})
    assert Precision(Policy(deny="*"), reasons={"*": "why"}).reasons == {"*": "why"}
    with pytest.raises(AttributeError):
        WHOLE.policy = POLICY


def test_a_precision_is_pickled_and_copied() -> None:
    for again in (pickle.loads(pickle.dumps(WHOLE)), copy.deepcopy(WHOLE)):
        assert again == WHOLE
        assert again.to_toml() == WHOLE.to_toml()


def _written(data: Any) -> str:
    """Return some data as TOML, as far as TOML can express it."""
    return "\n".join(
        f"{json.dumps(str(name))} = {_precision_toml._value(value)}" for name, value in data.items()
    )


def _sayable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(
            isinstance(name, str) and name.isidentifier() and _sayable(item)
            for name, item in value.items()
        )
    return all(map(_sayable, value)) if isinstance(value, list) else value is not None


@given(st.data())
def test_a_mutated_file_is_read_or_refused_in_words(data: st.DataObject) -> None:
    mutated = data.draw(spoilt(tomllib.loads(WHOLE.to_toml())).filter(_sayable))
    text = data.draw(cut(_written(mutated)))
    refused, found = "", None
    try:
        found = Precision.from_toml(text)
    except ValueError as error:
        refused = str(error)
    if found is None:
        assert refused.startswith("this is no precision file: ")
        assert refused.isprintable()
        return
    assert Precision.from_toml(found.to_toml()) == found


@given(st.text(max_size=200))
@example("\ufeff")
@example("a = 1979-05-27")
@example("format = nan")
def test_a_text_is_read_or_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="this is no precision file"):
        Precision.from_toml(text)


def test_the_schema_knows_what_the_reader_knows() -> None:
    schema = json.loads(
        resources.files("unamp").joinpath("data/precision.schema.json").read_text("utf-8")
    )
    definitions = schema["$defs"]
    assert set(definitions["policy"]["properties"]) == set(_precision_toml._POLICY)
    assert set(definitions["rule"]["properties"]) == set(_precision_toml._LAYER)
    assert definitions["policy"]["properties"]["level"]["enum"] == list(unamp.LEVELS)
    assert definitions["policy"]["properties"]["preset"]["enum"] == list(preset_names())
    versioned = [name for name in unamp.PRESETS if preset_versions(name)]
    assert schema["properties"]["lists"]["propertyNames"]["enum"] == versioned
    assert schema["properties"].keys() == {"format", "version", "lists", "policy", "layers"}
    assert schema["properties"]["version"]["const"] == _precision_toml.VERSION


# --- the lists that a file was made with ----------------------------------------------------------

OF_TORCH = Policy("O1", "bfloat16", preset="torch-cuda")


def made_with(text: str, version: str) -> str:
    """Return the text of a file as an older version's lists would have made it."""
    assert 'lists = {torch-cuda = "2.15"}' in text
    return text.replace('lists = {torch-cuda = "2.15"}', f'lists = {{torch-cuda = "{version}"}}')


def warned(read: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        found = read()
    assert {each.category for each in given} <= {unamp.AmpWarning}
    assert {each.filename for each in given} <= {__file__}
    return found, [str(each.message) for each in given]


def test_a_file_says_which_lists_it_was_made_with() -> None:
    text = Precision(OF_TORCH, LayerRules({"head": OF_TORCH.replace(preset="paddle")})).to_toml()
    assert tomllib.loads(text)["lists"] == {"torch-cuda": "2.15", "paddle": "3.3"}
    assert warned(lambda: Precision.from_toml(text))[1] == []
    # the preset is unamp, which has no versions
    assert "lists" not in tomllib.loads(WHOLE.to_toml())
    assert "lists" not in tomllib.loads(Precision(Policy(preset="torch-cuda@2.11")).to_toml())


def test_other_lists_are_warned_of_with_the_operations_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "precision.toml"
    path.write_text(made_with(Precision(OF_TORCH).to_toml(), "2.11"), "utf-8")
    found, [said] = warned(lambda: Precision.read(path))
    assert found.policy == OF_TORCH
    assert said.startswith(
        f"{path} was made with the lists of torch-cuda 2.11, "
        "and those of 2.15 are followed, with other rules"
    )
    assert "for rms_norm;" in said
    assert 'preset = "torch-cuda@2.11" in the file holds the old ones' in said
    other = tmp_path / "other.toml"
    other.write_text(path.read_text("utf-8"), "utf-8")
    region, [said] = warned(lambda: unamp.region_from(other))
    assert said.startswith(f"{other} was made with the lists of torch-cuda 2.11")
    assert region.policy == OF_TORCH


def test_whoever_reads_a_file_is_warned() -> None:
    text = made_with(OF_TORCH.replace(level="O2").to_toml(), "2.10")
    assert ["rms_norm" in said for said in warned(lambda: Policy.from_toml(text))[1]] == [True]
    text = made_with(LayerRules({"head": OF_TORCH}).to_toml(), "2.8")
    assert ["rms_norm" in said for said in warned(lambda: LayerRules.from_toml(text))[1]] == [True]


@pytest.mark.parametrize(
    ("policy", "version"),
    [
        (OF_TORCH, "2.12"),  # the same lists
        (OF_TORCH.replace(deny="rms_norm"), "2.11"),  # the user's own list decides
        (OF_TORCH.replace(level="O3"), "2.11"),
    ],
)
def test_where_no_rule_changes_nothing_is_said(policy: Policy, version: str) -> None:
    text = made_with(Precision(policy).to_toml(), version)
    assert warned(lambda: Precision.from_toml(text)) == (Precision(policy), [])


def test_a_newer_version_than_this_unamp_knows_is_said() -> None:
    text = made_with(Precision(OF_TORCH).to_toml(), "9.99")
    found, [said] = warned(lambda: Precision.from_toml(text))
    assert found.policy == OF_TORCH
    assert (
        "made with the lists of torch-cuda '9.99', which this unamp does not have (2.8, 2.10, "
        in said
    )
    with pytest.raises(ValueError, match="unknown version of preset 'torch-cuda' '9.99'"):
        Precision.from_toml(text, pinned=True)


def test_pinned_holds_the_lists() -> None:
    rules = LayerRules([LayerRule("head", OF_TORCH, reason="why"), LayerRule("**.wo", "float32")])
    now = Precision(OF_TORCH, rules, pinned=True)
    assert now.policy.preset == "torch-cuda@2.15"
    assert [each.preset for each in now.layers.policies] == ["torch-cuda@2.15"]
    assert Precision.from_toml(now.to_toml()) == now
    text = made_with(Precision(OF_TORCH, rules).to_toml(), "2.11")
    held, said = warned(lambda: Precision.from_toml(text, pinned=True))
    assert said == []
    assert held.policy == OF_TORCH.replace(preset="torch-cuda@2.11")
    assert held.policy.decide("rms_norm") is unamp.Rule.WIDEST
    assert [each.preset for each in held.layers.policies] == ["torch-cuda@2.11"]
    with pytest.raises(ValueError, match="preset 'unamp' has no versions"):
        Precision(Policy(), pinned=True)


def test_a_pinned_region_holds_the_lists_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "precision.toml"
    path.write_text(made_with(Precision(OF_TORCH).to_toml(), "2.11"), "utf-8")
    region, said = warned(lambda: unamp.region_from(path, pinned=True))
    assert said == []
    assert region.policy == OF_TORCH.replace(preset="torch-cuda@2.11")
    path.write_text(Precision(Policy()).to_toml(), "utf-8")
    with pytest.raises(ValueError, match="preset 'unamp' has no versions"):
        unamp.region_from(path, pinned=True)


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ("[]", "lists: must be a table of presets and versions, not list"),
        ("{torch-cuda = 2.11}", "lists, 'torch-cuda': must be"),
        ('{torch = "2.11"}', "unknown preset 'torch'"),
        ('{unamp = "1"}', "lists: preset 'unamp' has no versions"),
    ],
)
def test_bad_lists_are_refused(lists: str, says: str) -> None:
    text = Precision(OF_TORCH).to_toml().replace('{torch-cuda = "2.15"}', lists)
    with pytest.raises(ValueError, match=f"this is no precision file: .*{says}"):
        Precision.from_toml(text)


def test_a_file_is_written_again_with_the_lists_of_today() -> None:
    old = "# mine\n" + made_with(Precision(OF_TORCH).to_toml(), "2.11").replace(
        "dtype", "# the dtype\ndtype"
    )
    new = Precision(OF_TORCH).to_toml(over=old)
    assert new == old.replace("2.11", "2.15")
    without = Precision(OF_TORCH, pinned=True).to_toml(over=old)
    assert "lists" not in tomllib.loads(without)
    assert Precision.from_toml(without).policy.preset == "torch-cuda@2.15"
    again = Precision(OF_TORCH).to_toml(over=without)
    assert tomllib.loads(again)["lists"] == {"torch-cuda": "2.15"}
    assert Precision.from_toml(again).policy == OF_TORCH


# --- the command line, and regions ----------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "precision.toml"
    path.write_text(WHOLE.to_toml(), "utf-8")
    return path


def run(*arguments: object) -> Any:
    return invoke(*arguments)


def test_explain_a_file(file: Path) -> None:
    said = run("explain", file).output
    for part in (
        "tuned on three batches",
        "exp: beyond float16",
        "**.wo",
        'overflows: "66246"',
        "your deny list: group:norm",
    ):
        assert part in said
    assert json.loads(run("explain", file, "--json").output)["layers"] == RULES.to_data()
    refused = run("explain", file, "--level", "O2")
    assert refused.exit_code == 2
    assert "leave --level out" in refused.output


def test_diff_files(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(
        Precision(
            POLICY.replace(deny=["group:norm", "exp", "add"]), LayerRules({"**.wo": "float32"})
        ).to_toml(),
        "utf-8",
    )
    data = json.loads(run("diff", file, other, "--json").output)
    assert data["operations"]["add"] == {"before": "widest", "after": "float32"}
    after = {each["pattern"]: each["after"] for each in data["layers"]}
    assert after == {"**.wo": "float32", "head": "", ":LayerNorm": ""}
    assert "rules for layers that change: 3" in run("diff", file, other).output
    assert run("diff", file, other, "--level", "O2").exit_code == 2


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 200_000, b"format = 1\x00"])
def test_no_command_ends_in_a_traceback(content: bytes, file: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_bytes(content)
    for arguments in (
        ("explain", bad),
        ("diff", file, bad),
        ("explain", tmp_path / "none.toml"),
        ("diff", "unamp", bad),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, done.output
        assert isinstance(done.exception, SystemExit)


def test_a_region_from_a_file(file: Path) -> None:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        region = unamp.region_from(file)
        unamp.region_from(file)
    assert region.policy == POLICY
    assert [
        "has 3 rules for layers, which a region does not put on" in str(each.message)
        for each in given
    ] == [True]
    with pytest.raises(OSError, match="No such file"):
        unamp.region_from(file.parent / "none.toml")


def test_the_guides_file_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "precision.md").read_text("utf-8")
    shown = page.partition("```toml\n")[2].partition("```")[0]
    precision = Precision.from_toml(shown)
    assert [rule.pattern for rule in precision.layers] == ["**.wo", "head"]
    assert Precision.from_toml(precision.to_toml(over=shown)) == precision
    assert precision.to_toml(over=shown) == shown
