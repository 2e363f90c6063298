"""The tables of `unamp migrate` agree with the installed packages.

Each name in a row exists or is marked as removed. A new release that removes a name, or changes a
signature, fails here.
"""

from __future__ import annotations

import pytest
from names_there import FRAMEWORKS, names_in

from unamp.migrate.spellings import table


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_a_row_names_is_there_or_is_marked_as_removed(framework: str) -> None:
    rows = [row for row in table().rows.values() if row.framework == framework]
    _, answers = names_in(framework)
    gone = [row.name for row in rows if not answers[row.name][0] and not row.removed]
    assert not gone, f"not there, and not marked as removed: {gone}"
    back = [row.name for row in rows if answers[row.name][0] and row.removed]
    assert not back, f"there, and marked as removed: {back}"
    for row in rows:
        there, arguments = answers[row.name]
        if row.form is not None and there and arguments is not None:
            assert list(row.form.arguments) == arguments, row.name


def test_apex_is_gone() -> None:
    assert all(row.removed for row in table().rows.values() if row.framework == "apex")
