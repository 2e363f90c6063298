"""The tables in docs/tables agree with the data and the installed frameworks' adapters."""

from __future__ import annotations

from documents import FRAMEWORKS, ROOT
from elsewhere import ended
from installed import place


def test_no_table_is_stale() -> None:
    for framework in FRAMEWORKS:
        place(framework)
    done = ended(ROOT / "docs" / "tables.py", "--check")
    assert done.code == 0, f"run `make tables`\n{done.stdout}{done.stderr}"
