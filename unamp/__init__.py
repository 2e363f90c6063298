"""One automatic-mixed-precision policy for PyTorch, PaddlePaddle, MindSpore, TensorFlow and JAX."""

from typing import TYPE_CHECKING, Any

from unamp._compiler_marks import load_before_source_is_read as _load_before_source_is_read
from unamp._version import __version__ as __version__
from unamp.custom_function import custom_bwd, custom_fwd
from unamp.default_regions import default_region
from unamp.errors import (
    AdapterError,
    AmpHint,
    AmpWarning,
    BannedOperation,
    FrameworkNotSupported,
    NotExpressible,
)
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
from unamp.vocabulary import vocabulary

if TYPE_CHECKING:
    from unamp import dialects as dialects
    from unamp import testing as testing
    from unamp.adapter.records import OpRecord
    from unamp.checking import Answer, Checked, check
    from unamp.decoration import decorate
    from unamp.layers import LayerPolicies, LayerRule, LayerRules, layer_policies
    from unamp.precision import Precision, region_from
    from unamp.registration import Registration, register_operation
    from unamp.results import float32_results
    from unamp.scaling import GradScaler
    from unamp.tracing import Trace, TraceComparison, compare_traces, trace
    from unamp.tuning import Tuned, TuneReport, tune
    from unamp.watching import Watch, watch

__all__ = [
    "LEVELS",
    "PRESETS",
    "AdapterError",
    "AmpHint",
    "AmpWarning",
    "Answer",
    "BannedOperation",
    "Checked",
    "Decision",
    "Explanation",
    "FrameworkNotSupported",
    "GradScaler",
    "LayerPolicies",
    "LayerRule",
    "LayerRules",
    "NotExpressible",
    "OpRecord",
    "Policy",
    "Precision",
    "Region",
    "Registration",
    "Rule",
    "Trace",
    "TraceComparison",
    "TuneReport",
    "Tuned",
    "Watch",
    "amp_guard",
    "auto_cast",
    "auto_mixed_precision",
    "autocast",
    "check",
    "compare_traces",
    "current_policy",
    "custom_bwd",
    "custom_fwd",
    "decorate",
    "default_region",
    "explain",
    "float32_results",
    "get_autocast_dtype",
    "is_autocast_enabled",
    "layer_policies",
    "policy_region",
    "region_from",
    "register_operation",
    "trace",
    "tune",
    "vocabulary",
    "watch",
]


#: Names that are imported when they are first used: a program that only opens regions needs none.
_LATE = {
    name: f"unamp.{module}"
    for module, names in {
        "adapter.records": ("OpRecord",),
        "checking": ("Answer", "Checked", "check"),
        "decoration": ("decorate",),
        "layers": ("LayerPolicies", "LayerRule", "LayerRules", "layer_policies"),
        "precision": ("Precision", "region_from"),
        "registration": ("Registration", "register_operation"),
        "results": ("float32_results",),
        "scaling": ("GradScaler",),
        "tracing": ("Trace", "TraceComparison", "compare_traces", "trace"),
        "tuning": ("TuneReport", "Tuned", "tune"),
        "watching": ("Watch", "watch"),
    }.items()
    for name in names
}


if not TYPE_CHECKING:  # type checkers must not see this: they would accept any name

    def __getattr__(name: str) -> Any:
        if name in _LATE:
            from importlib import import_module

            found = globals()[name] = getattr(import_module(_LATE[name]), name)
            return found
        if name in ("dialects", "testing"):
            from importlib import import_module

            return import_module(f"unamp.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_load_before_source_is_read()
