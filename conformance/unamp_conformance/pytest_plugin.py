"""The suite as ordinary tests: ``pytest --pyargs unamp_conformance --unamp-framework=torch``.

This module is loaded with every run of pytest wherever unamp is installed, so it imports nothing of
unamp: the suite is imported, and the framework, once its tests are collected. The fixture
`assert_computed` is for users' own tests.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

__all__ = ["assert_computed", "pytest_addoption", "pytest_generate_tests"]

#: The options that select checks, each with the thing that it names.
_SELECTING = {
    "preset": "a preset",
    "level": "a level: O0, OD, O1, O2 or O3",
    "dtype": "float16 or bfloat16",
    "network": "a network",
    "check": "a kind of check",
    "op": "an operation, * is a wildcard",
    "way": "a way of the framework, * is a wildcard",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; those that select can be repeated."""
    group = parser.getgroup("unamp", "unamp's conformance suite (with --pyargs unamp_conformance)")
    group.addoption("--unamp-framework", metavar="NAME", help="the framework, by its import name")
    group.addoption(
        "--unamp-device",
        metavar="DEVICE",
        default="cpu",
        choices=("cpu", "gpu"),
        help="cpu (the default) or gpu",
    )
    group.addoption(
        "--unamp-full", action="store_true", help="every policy and every feed, for every operation"
    )
    for name, what in _SELECTING.items():
        group.addoption(
            f"--unamp-{name}",
            metavar="NAME",
            action="append",
            default=[],
            help=f"{what}; all unless said",
        )


@pytest.fixture
def assert_computed() -> Callable[..., None]:
    """Return `unamp.testing.assert_computed`, which compares a trace with promised dtypes."""
    from unamp.testing import assert_computed

    return assert_computed


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for every check."""
    if "unamp_check" in metafunc.fixturenames:
        from unamp_conformance.pytest_checks import parameters

        option = metafunc.config.getoption
        selected = {f"{name}s": tuple(option(f"unamp_{name}")) for name in _SELECTING}
        try:
            chosen = parameters(
                option("unamp_framework"),
                option("unamp_device"),
                {**selected, "full": option("unamp_full")},
            )
        except pytest.UsageError as error:
            # pytest shows a UsageError with a traceback here, and this error with its words alone
            raise pytest.Collector.CollectError(str(error)) from error
        metafunc.parametrize("unamp_check", chosen)
