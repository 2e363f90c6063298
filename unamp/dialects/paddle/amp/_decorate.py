"""`paddle.amp.decorate`."""

from __future__ import annotations

from functools import reduce
from typing import Any, Literal

import unamp
from unamp.adapter.registry import owner
from unamp.dialects._in_use import framework_in_use
from unamp.dtypes import dtype_name
from unamp.typing import DtypeLike

#: The norms without running statistics that Paddle keeps in float32 in float16 training, and where
#: each framework has them.
_NORMS = {
    "torch": (
        "torch",
        ("nn.LayerNorm", "nn.InstanceNorm1d", "nn.InstanceNorm2d", "nn.InstanceNorm3d"),
    ),
    "paddle": (
        "paddle",
        ("nn.LayerNorm", "nn.InstanceNorm1D", "nn.InstanceNorm2D", "nn.InstanceNorm3D"),
    ),
    "mindspore": (
        "mindspore",
        ("nn.LayerNorm", "nn.InstanceNorm1d", "nn.InstanceNorm2d", "nn.InstanceNorm3d"),
    ),
    "tensorflow": ("keras", ("layers.LayerNormalization",)),
}


def decorate(
    models: Any,
    optimizers: Any = None,
    level: Literal["O1", "O2"] = "O1",
    dtype: DtypeLike = "float16",
    master_weight: bool | None = None,
    save_dtype: str | None = None,
    master_grad: bool = False,
    excluded_layers: Any = None,
) -> Any:
    """Prepare networks and optimizers for pure low precision, on the CPU too.

    See `unamp.decorate`, which knows O3 as well.

    As in Paddle, layer and instance norms keep float32 parameters in float16, and not in bfloat16.

    Raises:
        ValueError: for a level other than O1 and O2, for another dtype, and as `unamp.decorate`.
        TypeError: for a value that is no network, optimizer or layer of one imported framework.
    """
    if level not in ("O1", "O2"):
        raise ValueError(
            f"level should be O1 or O2, not {level!r}; unamp.decorate knows O3 as well"
        )
    if level == "O2" and dtype_name(dtype) == "float16":
        excluded_layers = [*_listed(excluded_layers), *_norms(models)]
    return unamp.decorate(
        models, optimizers, level, dtype, master_weight, save_dtype, master_grad, excluded_layers
    )


amp_decorate = decorate


def _listed(value: object) -> list[object]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def _norms(models: object) -> list[type]:
    """Return the classes of `_NORMS` in the models' framework.

    Empty for anything but models, which `unamp.decorate` reports.
    """
    adapter = next((found for model in _listed(models) if (found := owner(model, "network"))), None)
    module, names = _NORMS.get(adapter.framework, ("", ())) if adapter else ("", ())
    return [reduce(getattr, name.split("."), framework_in_use(module)) for name in names]
