"""Errors inside a region, which have a note where they are about dtypes.

Each framework's folder asks it of its own errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import unamp
from unamp import Policy, policy_region


def an_error_about_dtypes_names_the_policy_once(
    error: type[Exception], dtype: str, call: Callable[[], Any]
) -> None:
    """Check the note of an error.

    Args:
        error: its class.
        dtype: the policy's dtype.
        call: raises it, in a function that has a low tensor by the name of ``doubled``.
    """
    policy = Policy("O2", dtype)
    with pytest.raises(error) as raised, policy_region(policy), policy_region(policy):
        call()
    (note,) = raised.value.__notes__
    assert note.startswith(f"unamp: raised inside a region of {policy!r}")
    assert f"doubled is {dtype}" in note
    assert unamp.current_policy() is None


def other_errors_are_left_alone(dtype: str, call: Callable[[], Any]) -> None:
    """Check an error that is about something else."""
    with pytest.raises(Exception) as raised, policy_region(Policy("O2", dtype)):  # noqa: PT011
        call()
    assert not hasattr(raised.value, "__notes__")
