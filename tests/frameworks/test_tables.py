"""The tables in docs/tables say what the data and the installed frameworks' adapters say."""

from __future__ import annotations

import subprocess
import sys

from documents import FRAMEWORKS, ROOT
from installed import place


def test_no_table_is_stale() -> None:
    for framework in FRAMEWORKS:
        place(framework)
    ran = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "tables.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"run `make tables`\n{ran.stdout}{ran.stderr}"
