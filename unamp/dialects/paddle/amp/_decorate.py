"""`paddle.amp.decorate`."""

from __future__ import annotations

from typing import Any

import unamp

__all__ = ["amp_decorate", "decorate"]


def amp_decorate(
    models: Any,
    optimizers: Any = None,
    level: str = "O1",
    dtype: object = "float16",
    master_weight: bool | None = None,
    save_dtype: str | None = None,
    master_grad: bool = False,
    excluded_layers: Any = None,
) -> Any:
    """Prepare networks and optimizers for pure low precision, on the CPU too; see `unamp.decorate`, which knows O3 as well.

    Raises:
        ValueError: for a level other than O1 and O2, for another dtype, and as `unamp.decorate`.
        TypeError: for what is no network, optimizer or layer of one imported framework.
    """
    if level not in ("O1", "O2"):
        raise ValueError(f"level should be O1 or O2, not {level!r}; unamp.decorate knows O3 as well")
    return unamp.decorate(models, optimizers, level, dtype, master_weight, save_dtype, master_grad, excluded_layers)


def decorate(
    models: Any,
    optimizers: Any = None,
    level: str = "O1",
    dtype: object = "float16",
    master_weight: bool | None = None,
    save_dtype: str | None = None,
    master_grad: bool = False,
    excluded_layers: Any = None,
) -> Any:
    """See `amp_decorate`."""
    return amp_decorate(models, optimizers, level, dtype, master_weight, save_dtype, master_grad, excluded_layers)
