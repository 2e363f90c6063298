"""The table of operator types has every type of ONNX once, and names valid operations."""

from __future__ import annotations

import tomllib
from importlib import resources

from onnx import defs

from unamp.vocabulary import vocabulary

TABLE = tomllib.loads(resources.files("unamp").joinpath("data/onnx.toml").read_text("utf-8"))


def test_every_type_of_the_operator_set_is_in_the_table_once() -> None:
    assert defs.onnx_opset_version() >= TABLE["opset"]
    types = {
        schema.name
        for schema in defs.get_all_schemas_with_history()
        if not schema.domain and not schema.deprecated and schema.since_version <= TABLE["opset"]
    }
    current = {name for name in types if not defs.get_schema(name, TABLE["opset"], "").deprecated}
    named = [*TABLE["operators"], *TABLE["unnamed"]]
    assert sorted(named) == sorted(current)


def test_every_operation_is_one_of_the_vocabulary() -> None:
    for table in (TABLE["operators"], TABLE["contributed"]):
        for kind, operations in table.items():
            for operation in [operations] if isinstance(operations, str) else operations:
                assert operation in vocabulary(), kind


def test_the_sources_have_addresses() -> None:
    assert TABLE["sources"].keys() == {"operators", "contributed"}
    assert all("https://" in source for source in TABLE["sources"].values())
