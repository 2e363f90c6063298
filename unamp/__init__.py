"""unamp: one automatic-mixed-precision policy for PyTorch, PaddlePaddle, MindSpore and TensorFlow."""

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
from unamp.scaling import GradScaler
from unamp.tracing import OpRecord, Trace, trace
from unamp.vocabulary import vocabulary

__version__ = "0.1.0"

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
