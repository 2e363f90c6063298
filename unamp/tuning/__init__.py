"""The tuner: finds the operations that must stay in float32, and the reasons.

The function `unamp.tune` searches; a package cannot have its name.
"""

from unamp.tuning.float8 import Float8Layer, Float8Study
from unamp.tuning.progress import Step
from unamp.tuning.reports import PlaceReport, PresetReport, TuneReport
from unamp.tuning.trials import Trial
from unamp.tuning.tuned import Tuned
from unamp.tuning.tuner import tune

__all__ = [
    "Float8Layer",
    "Float8Study",
    "PlaceReport",
    "PresetReport",
    "Step",
    "Trial",
    "TuneReport",
    "Tuned",
    "tune",
]
