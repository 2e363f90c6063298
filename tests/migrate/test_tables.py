"""The tables of spellings of `unamp migrate` are consistent.

tests/frameworks compares them with the installed packages.
"""

from __future__ import annotations

import importlib
import inspect
from functools import reduce

import pytest

import unamp
from unamp.migrate.spellings import FRAMEWORKS, framework_named, table, watch

ROWS = list(table().rows.values())


def test_every_row_says_where_it_was_read_and_what_becomes_of_it() -> None:
    for row in ROWS:
        assert row.version, row
        assert row.source, row
        assert row.dialect or row.form or (row.why and row.hand), row
        assert table().framework_of(row.name) == row.framework, row


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_a_dialect_is_named_for_is_there(framework: str) -> None:
    for row in ROWS:
        if row.framework == framework and row.dialect:
            module, _, name = row.dialect.rpartition(".")
            assert hasattr(importlib.import_module(f"unamp.dialects.{module}"), name), row
    for module, dialect in table().modules.items():
        if dialect:
            importlib.import_module(f"unamp.dialects.{dialect}")
            assert table().framework_of(module)


def test_what_a_form_writes_is_what_unamp_takes() -> None:
    for form in {row.form.to + str(row.form.old): row.form for row in ROWS if row.form}.values():
        made = reduce(getattr, form.to.split(".")[1:], unamp)
        taken = inspect.signature(made).parameters  # type: ignore[arg-type]
        dropped = {*form.dropped, *form.refused}
        written = {form.called.get(name, name) for name in form.arguments if name not in dropped}
        first = next(iter(taken))
        assert written - {"fwd", "bwd"} | set(form.lead) | set(form.explicit) <= set(taken), form
        assert not form.lead or list(form.lead) == [first]
        assert {*form.called, *dropped} <= set(form.arguments)
        for method in form.lacks:
            assert not hasattr(unamp.GradScaler, method), method


def test_words_of_from() -> None:
    found = [framework_named(word) for word in ("keras", "tf", "pytorch", "apex")]
    assert found == ["tensorflow", "tensorflow", "torch", "apex"]
    assert watch().casts
