"""unamp: one automatic-mixed-precision policy for PyTorch, PaddlePaddle, MindSpore and TensorFlow."""

from typing import TYPE_CHECKING, Any

from unamp.custom_function import custom_bwd, custom_fwd
from unamp.errors import AdapterError, BannedOperation, FrameworkNotSupported, NotExpressible
from unamp.explaining import Explanation, explain
from unamp.networks import auto_mixed_precision
from unamp.policy import LEVELS, Decision, Policy, Rule
from unamp.presets import PRESETS
from unamp.regions import (
    Region,
    amp_guard,
    auto_cast,
    autocast,
    current_policy,
    get_autocast_dtype,
    is_autocast_enabled,
    policy_region,
)
from unamp.tracing import OpRecord, Trace, trace
from unamp.vocabulary import vocabulary

__version__ = "0.1.0"

if TYPE_CHECKING:
    from unamp.decoration import decorate
    from unamp.scaling import GradScaler

__all__ = [
    "LEVELS",
    "PRESETS",
    "AdapterError",
    "BannedOperation",
    "Decision",
    "Explanation",
    "FrameworkNotSupported",
    "GradScaler",
    "NotExpressible",
    "OpRecord",
    "Policy",
    "Region",
    "Rule",
    "Trace",
    "amp_guard",
    "auto_cast",
    "auto_mixed_precision",
    "autocast",
    "current_policy",
    "custom_bwd",
    "custom_fwd",
    "decorate",
    "explain",
    "get_autocast_dtype",
    "is_autocast_enabled",
    "policy_region",
    "trace",
    "vocabulary",
]


_LAZY = {"GradScaler": "unamp.scaling", "decorate": "unamp.decoration"}


def __getattr__(name: str) -> Any:
    # Who only opens regions does not load them.
    from importlib import import_module

    if name in _LAZY:
        value = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return value
    if name == "dialects":
        return import_module("unamp.dialects")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
