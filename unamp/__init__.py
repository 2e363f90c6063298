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
    "explain",
    "get_autocast_dtype",
    "is_autocast_enabled",
    "policy_region",
    "trace",
    "vocabulary",
]


def __getattr__(name: str) -> Any:
    # Who only opens regions does not load it.
    if name == "GradScaler":
        from unamp.scaling import GradScaler

        globals()[name] = GradScaler
        return GradScaler
    if name == "dialects":
        import unamp.dialects

        return unamp.dialects
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
