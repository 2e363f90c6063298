"""The data files keep their rules: what the vocabulary and presets may say, and the order."""

from __future__ import annotations

import tomllib
from collections import Counter
from importlib import resources

import pytest

DATA = resources.files("unamp").joinpath("data")
FRAMEWORKS = ("torch", "paddle", "mindspore", "tensorflow", "apex")
GROUPS = set(
    (
        "matmul conv recurrent attention norm activation softmax loss elementwise reduction "
        "pooling linalg fft indexing shape creation random cast comparison embedding resize "
        "quantize special other"
    ).split()
)
PRESETS = (
    "apex",
    "mindspore",
    "native",
    "none",
    "paddle",
    "tensorflow",
    "torch-cpu",
    "torch-cuda",
    "torch-mps",
    "unamp",
)
RULES = ("allow", "deny", "promote", "banned", "infer", "clear")
KEYS = {
    "schema",
    "name",
    "title",
    "framework",
    "version",
    "source",
    "advice",
    "implied",
    "delegates",
    *RULES,
}
VARIANTS = ("bfloat16", "o2", "auto")


def table(name: str) -> dict:
    return tomllib.loads(DATA.joinpath(name).read_text("utf-8"))


VOCABULARY = table("vocabulary.toml")
OPS = VOCABULARY["ops"]


@pytest.fixture(params=PRESETS)
def preset(request: pytest.FixtureRequest) -> dict:
    return table(f"presets/{request.param}.toml")


def rule_lists(preset: dict) -> dict[str, list[str]]:
    """Return every list of operations, with the variants for a dtype or a level."""
    return {key: names for key, names in preset.items() if key.partition("_")[0] in RULES}


# --------------------------------------------------------------------------------------------------
# The vocabulary
# --------------------------------------------------------------------------------------------------


def test_vocabulary_states_its_schema_and_sources() -> None:
    assert VOCABULARY.keys() == {"schema", "sources", "ops"}
    assert VOCABULARY["schema"] == 1
    assert tuple(VOCABULARY["sources"]) == FRAMEWORKS


def test_operations_are_sorted() -> None:
    assert list(OPS) == sorted(OPS)


def test_operations_have_only_known_keys() -> None:
    assert {key for op in OPS.values() for key in op} == {"group", "parts", "members", *FRAMEWORKS}


def test_groups_are_valid_and_all_used() -> None:
    assert {op["group"] for op in OPS.values()} == GROUPS


def test_every_operation_has_a_spelling() -> None:
    assert not [
        name for name, op in OPS.items() if not any(op.get(framework) for framework in FRAMEWORKS)
    ]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_spelling_stands_once(framework: str) -> None:
    counts = Counter(spelling for op in OPS.values() for spelling in op.get(framework, ()))
    assert not {spelling: count for spelling, count in counts.items() if count > 1}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_native_spellings_come_before_public_paths(framework: str) -> None:
    for name, op in OPS.items():
        dotted = ["." in spelling for spelling in op.get(framework, ())]
        assert dotted == sorted(dotted), f"{name}: {framework}"


def test_spellings_do_not_repeat_their_package() -> None:
    heads = {"torch", "aten", "paddle", "mindspore", "tensorflow", "tf"}
    spelled = [
        s
        for op in OPS.values()
        for framework in FRAMEWORKS
        for s in op.get(framework, ())
        if "." in s
    ]
    assert not [spelling for spelling in spelled if spelling.partition(".")[0] in heads]


@pytest.mark.parametrize("key", ["parts", "members"])
def test_parts_and_members_are_operations(key: str) -> None:
    for name, op in OPS.items():
        others = op.get(key, [])
        assert set(others) <= OPS.keys() - {name}, f"{name}: {key}"


@pytest.mark.parametrize("key", ["parts", "members"])
def test_parts_and_members_have_no_cycles(key: str) -> None:
    def walk(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"{key}: {' > '.join((*above, name))}"
        for other in OPS[name].get(key, []):
            walk(other, (*above, name))

    for name in OPS:
        walk(name, ())


@pytest.mark.parametrize(
    ("framework", "spelling", "name"),
    [
        ("paddle", "elementwise_add", "add"),
        ("paddle", "matmul_v2", "matmul"),
        ("paddle", "mul", "matmul_flatten"),
        ("paddle", "softmax_with_cross_entropy", "cross_entropy"),
        ("tensorflow", "AddV2", "add"),
        ("tensorflow", "BatchMatMulV2", "bmm"),
        ("tensorflow", "Conv2DBackpropInput", "conv_transpose2d"),
        ("tensorflow", "keras.layers.Dense", "linear"),
        ("mindspore", "ops.Add", "add"),
        ("mindspore", "ops.MatMul", "matmul"),
        ("mindspore", "nn.Dense", "linear"),
        ("torch", "nn.Linear", "linear"),
        ("torch", "rsub", "sub"),
        ("torch", "cross_entropy_loss", "cross_entropy"),
        ("apex", "__matmul__", "matmul"),
    ],
)
def test_well_known_spellings(framework: str, spelling: str, name: str) -> None:
    assert spelling in OPS[name][framework]


# --------------------------------------------------------------------------------------------------
# The presets
# --------------------------------------------------------------------------------------------------


def test_the_presets_are_the_documented_ones() -> None:
    files = {
        entry.name for entry in DATA.joinpath("presets").iterdir() if entry.name.endswith(".toml")
    }
    assert files == {f"{name}.toml" for name in PRESETS}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_named_after_its_file(name: str) -> None:
    assert table(f"presets/{name}.toml")["name"] == name


def test_a_preset_says_where_it_is_from(preset: dict) -> None:
    assert preset["schema"] == 1
    assert all(preset[key] for key in ("title", "version", "source"))
    assert preset["framework"] in (*FRAMEWORKS, "none", "native")
    assert "\n" not in preset["title"]


def test_a_preset_has_only_known_keys(preset: dict) -> None:
    for key in preset.keys() - KEYS:
        rule, _, variant = key.partition("_")
        assert (rule in RULES, variant in VARIANTS) == (True, True), key
    assert {"allow", "deny", "promote", "banned"} <= preset.keys()


def test_lists_are_sorted_names_of_the_vocabulary(preset: dict) -> None:
    for key, names in rule_lists(preset).items():
        assert names == sorted(set(names)), key
        assert set(names) <= OPS.keys(), key


@pytest.mark.parametrize("variant", ["", *VARIANTS])
def test_no_operation_is_on_two_lists(preset: dict, variant: str) -> None:
    """Variants for a dtype or a level swap some of the lists; these are checked, too."""
    effective = {rule: preset.get(f"{rule}_{variant}", preset.get(rule, [])) for rule in RULES}
    counts = Counter(name for names in effective.values() for name in names)
    assert not [name for name, count in counts.items() if count > 1]


def test_every_banned_operation_has_advice(preset: dict) -> None:
    assert set(preset["banned"]) == preset.get("advice", {}).keys()


def test_implied_entries_are_on_a_list(preset: dict) -> None:
    assert preset.get("implied", {}).keys() <= {*preset["allow"], *preset["deny"]}


def test_members_follow_their_collective_name(preset: dict) -> None:
    """To deny `interpolate` and not one of the interpolations would be a contradiction."""
    for key, names in rule_lists(preset).items():
        for name in names:
            rest = sorted(set(OPS[name].get("members", [])) - set(names))
            assert not rest, f"{key}: {name} without {rest}"


def test_apex_lists_what_apex_spelled() -> None:
    """Compare apex's spellings with its lists: two readings of the same files.

    apex cannot be installed for a comparison.
    """
    apex = table("presets/apex.toml")
    listed = {
        name for rule in ("allow", "deny", "promote", "banned") for name in apex[rule]
    } - apex["implied"].keys()
    assert listed == {name for name, op in OPS.items() if "apex" in op}


def test_native_delegates_to_presets() -> None:
    native = table("presets/native.toml")
    assert native["delegates"].keys() == set(FRAMEWORKS) - {"apex"}
    for devices in native["delegates"].values():
        assert devices.keys() <= {"cpu", "gpu", "cuda", "mps", "xpu", "CPU", "GPU", "Ascend"}
        assert set(devices.values()) <= set(PRESETS) - {"native"}
    assert not any(rule_lists(native).values())
