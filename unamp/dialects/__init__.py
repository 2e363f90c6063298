"""The frameworks' own spellings of mixed precision, each for every framework.

They take the tensors, networks and optimizers of every framework.

Put ``unamp.dialects.`` in front of the module that you import from, and leave the rest as it is::

    from unamp.dialects.torch.amp import autocast, GradScaler
    from unamp.dialects.torch.cuda.amp import autocast
    from unamp.dialects.paddle.amp import auto_cast, decorate
    from unamp.dialects.mindspore.amp import auto_mixed_precision, DynamicLossScaler
    from unamp.dialects.keras.mixed_precision import LossScaleOptimizer

Names, signatures, defaults, results and exceptions are the framework's own; each module states what
differs. The names are in `unamp.dialects.torch`, `.paddle`, `.mindspore` and `.keras` too.
No framework is imported.
"""

from typing import Any

__all__ = ["keras", "mindspore", "paddle", "torch"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        return import_module(f"unamp.dialects.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
