"""The suite as a test, which `unamp_conformance.pytest_plugin` repeats for every check."""

from __future__ import annotations

from typing import Any


def test_conforms(unamp_check: Any) -> None:
    """A check holds."""
    unamp_check.run()
