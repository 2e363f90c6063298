"""The kit for writing an adapter.

The names here are the contract: what an adapter promises, and what it is promised. The modules are
tools, to be used where they fit:

- `contract`: `Adapter` itself, with what it hands out and takes
- `base`: the class that adapters derive from, with the answers that most of them share
- `operations`: the namespace that conformance is written against
- `ways`: the ways in which a framework runs a function: compiled, traced, exported, ...
- `absent_devices`: devices that are not here, but whose programs a framework can write down: their
  decisions are read
- `tensor_kinds`: the kinds of tensor that are not one dense array: sparse, ragged, nested, ...
- `hooks`: the table of a framework's private names, and the check of them before they are used
- `plain_ways`: the ways that are Python's alone, for every framework: decorators, another thread;
  and the two places of a way's region
- `registry`: how adapters are found, checked and loaded
- `versions`: the versions of a framework that an adapter works with
- `machine`: the processor, and the environment variables that change what frameworks use of it
- `state`: the state of a thread, and the protocol by which lower layers name a plan
- `patching`: the life of patches: applied with the first region, undone with the last
- `replacing`: the kinds of patches: each replaces one function, method or attribute
- `plans`: what plans have in common: rules, the message of a ban, how a rule is carried out
- `registered`: operations that users register: the optional part of an adapter
- `performing`: carrying out the rule for one call
- `framework_types`: the names of a framework's own types, which only its adapter knows
- `memory`: comparing the bytes of two tensors on the CPU
- `arguments`: tensors in arguments and results, however nested
- `observing`: reporting to `unamp.trace`
- `open_traces`: the traces of a thread, and the observer that takes its reports
- `records`: the reports
- `gradient_hooks`: reporting gradients to a trace; `Observer.report` and `Reporter` put hooks on
- `shadowing`: computing a reported operation a second time, low: the optional part of reports
- `float8`: products from float8, for shadows and for the study of `unamp.tune`
- `kept_calls`: writing down the arguments of an operation, to run it again: the optional part of
  reports
- `signatures`: calls in a form that every framework can run; `keras_calls`: those of Keras
- `facts`: reading an adapter's data files: facts about its framework's operations, and its gaps
- `spellings`: a framework's objects by their spellings
- `forwarding`: code that stands in for a function with the function's own signature
- `keras_models`: models of Keras, whatever it computes with; `keras_masters` are its optimizers'
  master weights
- `keras_policies`: dtype policies of Keras' layers in a region
- `keras_losses`: losses of Keras' added up in float32; `keras_metrics` has metrics count in it
- `layers`: rules for single layers, the optional part of an adapter; `keras_layers`: for Keras
- `layered_networks`: networks with layers, as conformance takes them to check such rules
- `wrapping`: classes under their base's name; a second object for a network, with another method
"""

from typing import TYPE_CHECKING, Any

from unamp.adapter.contract import (
    DEVICES,
    Adapter,
    CapturesNothing,
    Decoration,
    Fact,
    Gap,
    Gradients,
    How,
    KnowsRanks,
    MayBeFaster,
    NamesDevices,
    NamesGradients,
    Realisation,
    Support,
    TellsOfDtypes,
)
from unamp.adapter.operations import NamedOperations, Operations
from unamp.adapter.records import OpRecord
from unamp.adapter.versions import check_version, major_minor

if TYPE_CHECKING:
    from unamp.adapter.ways import WAY_KINDS, OpenRegion, Way

__all__ = [
    "DEVICES",
    "WAY_KINDS",
    "Adapter",
    "CapturesNothing",
    "Decoration",
    "Fact",
    "Gap",
    "Gradients",
    "How",
    "KnowsRanks",
    "MayBeFaster",
    "NamedOperations",
    "NamesDevices",
    "NamesGradients",
    "OpRecord",
    "OpenRegion",
    "Operations",
    "Realisation",
    "Support",
    "TellsOfDtypes",
    "Way",
    "check_version",
    "major_minor",
]


def __getattr__(name: str) -> Any:
    """Import the names that conformance alone needs, when they are first asked for.

    A program that only opens regions would wait for their import.
    """
    if name in ("WAY_KINDS", "OpenRegion", "Way"):
        from unamp.adapter import ways

        return getattr(ways, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
