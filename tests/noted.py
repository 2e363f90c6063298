"""Errors inside a region: those about dtypes have a note.

Each framework's folder tests its own errors.
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
    """Check the note of an error about dtypes.

    Args:
        error: the error's class.
        dtype: the policy's dtype.
        call: raises the error, in a function that has a low tensor named ``doubled``.
    """
    policy = Policy("O2", dtype)
    with pytest.raises(error) as raised, policy_region(policy), policy_region(policy):
        call()
    (note,) = raised.value.__notes__
    assert note.startswith(f"unamp: raised inside a region of {policy!r}")
    assert f"doubled is {dtype}" in note
    assert unamp.current_policy() is None


def other_errors_are_left_alone(dtype: str, call: Callable[[], Any]) -> None:
    """Check that an error about something else has no note."""
    with pytest.raises(Exception) as raised, policy_region(Policy("O2", dtype)):  # noqa: PT011
        call()
    assert not hasattr(raised.value, "__notes__")
