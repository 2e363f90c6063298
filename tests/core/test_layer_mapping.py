"""The layers of one run are mapped to those of another.

Pairs are proposed, written to a file, corrected, read strictly, and used to compare.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commanded import invoke
from hypothesis import given
from hypothesis import strategies as st

import unamp
from unamp import OpRecord, Policy, Rule, Trace, compare_traces
from unamp.adapter.records import Values
from unamp.tracing import LayerMapping, propose_layers

HEAD = 'format = "unamp layers"\nversion = 1\n'


def record(
    op: str, layer: str | None, numbers: object, policy: Policy | None = None, framework: str = ""
) -> OpRecord:
    array = np.asarray(numbers, np.float64)
    values = Values.of(array.shape, [array.reshape(-1)])
    return OpRecord(
        op,
        op,
        Rule.LOW,
        ("float32",),
        "float32",
        "float32",
        False,
        layer,
        0,
        0,
        framework,
        values,
        policy,
        (),
        array.shape,
    )


def trace_of(*records: OpRecord) -> Trace:
    trace = Trace(values=True)
    trace.records.extend(records)
    return trace


#: Attention as one layer with layers inside, and as separate layers in another network.
#: Two products of the same shape have changed places.
REFERENCE = trace_of(
    record("linear", "Net.attention.q", [1.0, 2.0]),
    record("linear", "Net.attention.k", [3.0, 1.0]),
    record("matmul", "Net.attention", [1.0, 1.0, 5.0]),
    record("relu", "Net.act", [9.0]),
)
OTHER = trace_of(
    record("linear", "Model.attn.query", [1.0, 2.0]),
    record("linear", "Model.attn.key", [3.0, 1.0]),
    record("matmul", "Model.attn", [1.0, 1.0, 5.0]),
    record("relu", "Model.relu_1", [9.0]),
    record("exp", "Model.extra", [9.0]),
)
PAIRS = (
    ("Net.attention.q", "Model.attn.query"),
    ("Net.attention.k", "Model.attn.key"),
    ("Net.attention", "Model.attn"),
    ("Net.act", "Model.relu_1"),
)


def test_layers_are_proposed_by_operations_shapes_and_order() -> None:
    proposed = propose_layers(REFERENCE, OTHER)
    assert proposed.pairs == PAIRS
    assert proposed.alone == ((), ("Model.extra",))
    assert propose_layers(REFERENCE, OTHER) == proposed


def test_names_decide_where_all_else_is_alike() -> None:
    one = trace_of(record("linear", "Net.decoder", [1.0, 2.0]), record("exp", "Net.x", [1.0]))
    other = trace_of(
        record("exp", "M.y", [1.0]),
        record("linear", "M.encoder", [1.0, 2.0]),
        record("linear", "M.decoder", [2.0, 1.0]),
    )
    assert ("Net.decoder", "M.decoder") in propose_layers(one, other).pairs


def test_what_is_a_layer_here_may_be_several_there() -> None:
    whole = trace_of(*(record("linear", "Net.mlp", [float(n)] * (n + 1)) for n in range(4)))
    parts = trace_of(*(record("linear", f"M.part{n}", [float(n)] * (n + 1)) for n in range(4)))
    proposed = propose_layers(whole, parts)
    assert proposed.pairs == tuple(("Net.mlp", f"M.part{n}") for n in range(4))
    compared = compare_traces(whole, parts, layers=LayerMapping.from_toml(proposed.to_toml()))
    assert (len(compared.operations), compared.within) == (4, True)


def test_a_file_says_what_it_was_written_from() -> None:
    text = propose_layers(REFERENCE, OTHER).to_toml()
    assert '"Net.attention.q" = "Model.attn.query"  # linear: 1 of 1 in order' in text
    assert text.endswith('# Without a partner in the other run:\n# "Model.extra"\n')
    assert LayerMapping.from_toml(text).pairs == PAIRS


@given(st.lists(st.tuples(st.text(), st.text()), unique=True))
def test_every_name_that_can_be_shown_can_be_written(pairs: list[tuple[str, str]]) -> None:
    mapping = LayerMapping(tuple(sorted(pairs)))
    if all(name.isprintable() and name != "-" for pair in pairs for name in pair):
        assert LayerMapping.from_toml(mapping.to_toml()) == mapping
    elif not all(name.isprintable() for pair in pairs for name in pair):
        with pytest.raises(ValueError, match="a file cannot hold the name"):
            mapping.to_toml()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'format' is missing"),
        ("{", "Expected|Invalid"),
        ('format = "x"\nversion = 1\n[layers]\n', "format: must be 'unamp layers', not 'x'"),
        ('format = "unamp layers"\nversion = 2\n[layers]\n', "version: 2 is not known"),
        (HEAD, "'layers' is missing"),
        (f"{HEAD}x = 1\n[layers]\n", "unknown field 'x'"),
        (f"{HEAD}layers = []\n", "layers: must be a table"),
        (f'{HEAD}[layers]\n"a" = 1\n', "layers, 'a': must be text"),
        (f'{HEAD}[layers]\n"a" = ["b", 1]\n', "layers, 'a' 2: must be text"),
        (f'{HEAD}[layers]\n"a" = ["b", "b"]\n', "layers, 'a': names 'b' twice"),
        (f'{HEAD}[layers]\n"a" = "b"\n"a" = "c"\n', "this is no mapping of layers"),
        (f'{HEAD}[layers]\na.b = "c"\n', "layers, 'a': must be text, not dict"),
        (f'{HEAD}[layers]\n"a" = "\\u001b[31m"\n', "must be printable text"),
        (f"{HEAD}layers = {'[' * 100_000}", "nested too deeply|Invalid|Unclosed|Expected"),
        ("x" * (1 << 21), "has more than 1048576 characters"),
    ],
)
def test_a_hostile_file_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says) as error:
        LayerMapping.from_toml(text)
    assert str(error.value).startswith("this is no mapping of layers: ")
    assert "\n" not in str(error.value)


def test_a_layer_of_the_file_is_compared_with_its_partner_alone() -> None:
    one = trace_of(record("linear", "Net.a", [1.0]), record("linear", "Net.b", [2.0]))
    other = trace_of(record("linear", "Net.b", [1.0]), record("linear", "Net.a", [2.0]))
    assert not compare_traces(one, other).within  # the same names belong to different layers
    compared = compare_traces(
        one, other, layers=LayerMapping((("Net.a", "Net.b"), ("Net.b", "Net.a")))
    )
    assert (len(compared.operations), compared.within) == (2, True)
    assert compared.table().splitlines()[0].endswith("layer in other")
    alone = trace_of(record("linear", "Net.b", [1.0]), record("exp", "Net.a", [2.0]))
    compared = compare_traces(one, alone, layers=LayerMapping((("Net.a", "Net.a"),)))
    assert [r.layer for r in compared.only_in_reference] == ["Net.a"]
    assert [r.layer for r in compared.only_in_other] == ["Net.a"]


def test_a_layer_that_is_none_is_named() -> None:
    with pytest.raises(
        ValueError,
        match=r"the other run has no layer 'Model.attn.kee'; did you mean 'Model.attn.key'",
    ):
        compare_traces(REFERENCE, OTHER, layers=LayerMapping((("Net.act", "Model.attn.kee"),)))
    with pytest.raises(TypeError, match="layers must be an unamp.tracing.LayerMapping, not dict"):
        compare_traces(REFERENCE, OTHER, layers={"Net.act": "Model.relu_1"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="other must be an unamp.Trace, not str"):
        propose_layers(REFERENCE, "x")  # type: ignore[arg-type]


def test_the_first_difference_has_its_rule_on_both_sides() -> None:
    policy = Policy(dtype="bfloat16", allow="exp")
    one = trace_of(
        record("linear", "Net.a", [1.0, 1.0]), record("exp", "Net.b", [2.0], framework="torch")
    )
    other = trace_of(
        record("linear", "M.x", [1.0, 1.0]), record("exp", "M.y", [3.0], policy, "jax")
    )
    compared = compare_traces(one, other, layers=LayerMapping((("Net.a", "M.x"), ("Net.b", "M.y"))))
    verdict, reference, last = compared.remarks()
    assert "first exp in M.y: error 5.00e-01" in verdict
    assert (
        reference
        == "  the reference: torch exp in Net.b, computed in float32, rule low: no region was open"
    )
    assert last == (
        f"  the other: jax exp in M.y, computed in float32, rule low: {policy.reason('exp').origin}"
    )
    first = compared.to_data()["first"]
    assert (first["op"], first["other"]["reason"]) == ("exp", policy.reason("exp").origin)


def test_the_command_proposes_once_and_compares_by_what_a_person_corrected(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, trace in zip(files, (REFERENCE, OTHER), strict=True):
        file.write_text(trace.to_json(), "utf-8")
    layers = tmp_path / "layers.toml"

    def run(*arguments: object) -> tuple[int, str]:
        done = invoke("compare", *files, *arguments)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return done.exit_code, " ".join(done.output.replace("│", " ").split())

    assert run("--propose-layers", layers)[0] == 0
    before = layers.read_text("utf-8")
    code, said = run("--propose-layers", layers)
    assert (code, layers.read_text("utf-8")) == (2, before)
    assert "is there already" in said
    assert run("--layers", layers)[0] == 0
    swapped = before.replace(".query", ".x").replace(".key", ".query").replace(".x", ".key")
    layers.write_text(swapped, "utf-8")
    assert run("--layers", layers)[0] == 1  # a wrong correction: the numbers differ
    layers.write_text("[", "utf-8")
    assert run("--layers", layers)[0] == 2
    assert run("--layers", layers, "--propose-layers", tmp_path / "new")[0] == 2


def test_the_names_are_public() -> None:
    assert unamp.tracing.propose_layers is propose_layers
