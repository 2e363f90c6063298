"""Traces: which operation ran where, in which precision, and at what cost.

`unamp.trace` is the function that opens one; the package cannot have its name.
"""

from unamp.tracing.comparing import TraceComparison, compare_traces
from unamp.tracing.gradients import GradientLine
from unamp.tracing.recording import Trace, ran_under, trace
from unamp.tracing.shadows import ShadowLine
from unamp.tracing.tables import Line
from unamp.tracing.work import Work, share, total_work, work_of

__all__ = [
    "GradientLine",
    "Line",
    "ShadowLine",
    "Trace",
    "TraceComparison",
    "Work",
    "compare_traces",
    "ran_under",
    "share",
    "total_work",
    "trace",
    "work_of",
]
