"""Regions and compiled graphs."""

from __future__ import annotations

from typing import Any

__all__ = ["hooks", "needed"]


def hooks() -> tuple[Any, ...]:
    return ()


def needed() -> list[tuple[Any, str]]:
    return []
