"""Traces: which operation ran where, in which precision, and at what cost.

The function `unamp.trace` opens a trace; a package cannot have its name.
"""

from unamp.tracing.comparing import TraceComparison, compare_traces, propose_layers
from unamp.tracing.gradients import GradientLine
from unamp.tracing.layer_mapping import LayerMapping
from unamp.tracing.recording import Trace, ran_under, trace
from unamp.tracing.replaying import Replay, replay
from unamp.tracing.shadows import ShadowLine
from unamp.tracing.tables import Line
from unamp.tracing.work import Work, share, total_work, work_of

__all__ = [
    "GradientLine",
    "LayerMapping",
    "Line",
    "Replay",
    "ShadowLine",
    "Trace",
    "TraceComparison",
    "Work",
    "compare_traces",
    "propose_layers",
    "ran_under",
    "replay",
    "share",
    "total_work",
    "trace",
    "work_of",
]
