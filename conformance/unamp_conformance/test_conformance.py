"""The suite as a test, which `unamp_conformance.pytest_plugin` repeats for every check."""

from __future__ import annotations

from unamp_conformance.pytest_checks import Check


def test_conforms(unamp_check: Check) -> None:
    """Run a check, which fails the test where it does not hold."""
    unamp_check.run()
