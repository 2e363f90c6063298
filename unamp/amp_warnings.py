"""Warnings about calls that work, and probably do something else than was meant.

Each is given once in a process, for the line of the user's own code that led to it, in the category
`unamp.AmpWarning`:

    warnings.filterwarnings("ignore", category=unamp.AmpWarning)

Hints are about calls that are right and could be faster; their category is `unamp.AmpHint`.

Nothing here runs when a region is opened again: a region asks once, when it is first opened with a
set of frameworks.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unamp.adapter.contract import MayBeFaster
from unamp.adapter.open_traces import traces
from unamp.adapter.versions import major_minor
from unamp.dtypes import FLOAT32
from unamp.errors import AmpHint, AmpWarning
from unamp.policy import Rule

if TYPE_CHECKING:
    from unamp.adapter import Adapter
    from unamp.policy import Policy

#: A dtype that is this many times slower than float32 is worth a warning.
SLOW = 3.0

#: Frameworks, with an adapter or not, that the warning of a region without effect may name.
_FRAMEWORKS = tuple(
    "torch paddle mindspore tensorflow jax mlx mxnet tinygrad oneflow jittor".split()
)

_lock = threading.Lock()
_given: set[object] = set()


def slow_dtype(adapter: Adapter, policy: Policy, device: str | None) -> None:
    """Warn of a region whose dtype is many times slower than float32 on the only device."""
    if not policy.active or policy.dtype == FLOAT32 or device == "gpu":
        return
    factor = adapter.slowdown("cpu", policy.dtype)
    # A framework is asked for its devices last: the question may start it on them, though only
    # another framework imported it.
    if factor >= SLOW and (device is not None or adapter.devices() == ("cpu",)):
        followed = policy.delegated(adapter.framework, "cpu")
        if followed is None or Rule.LOW not in followed.rules.values():
            return
        other = "bfloat16" if policy.dtype == "float16" else "float16"
        better = (
            f"{other} or float32 is faster"
            if adapter.slowdown("cpu", other) < factor / 2
            else "float32 is faster"
        )
        _once(
            f"on a CPU {adapter.framework} is about {factor:.0f} times slower in {policy.dtype} "
            f"than in float32; {better}"
        )


def may_be_faster(adapter: Adapter, policy: Policy) -> None:
    """Give the hint of an adapter that would be faster if a part of it were built."""
    if policy.active and isinstance(adapter, MayBeFaster) and (how := adapter.faster()) is not None:
        _once(how, category=AmpHint)


def left_out(unsuitable: Mapping[str, Exception], covered: Sequence[Adapter]) -> None:
    """Warn of imported frameworks that no region can cover, where others are covered.

    Raises:
        FrameworkNotSupported, AdapterError: where no other is covered.
    """
    for framework, error in unsuitable.items():
        if not covered:
            raise error.with_traceback(None)
        _once(f"{framework} is imported, and no policy is in force on it: {error}")


def no_such_device(missing: str) -> None:
    """Warn of a region for a device that is not there."""
    _once(f"{missing}; a region for it changes nothing")


def nothing_covered(policy: Policy) -> None:
    """Warn of a region that covered no framework, when it closes."""
    from unamp.adapter.registry import adapters_in_use

    if not policy.active:
        return
    if late := [adapter.framework for adapter in adapters_in_use()]:
        _once(
            f"{', '.join(late)} was imported inside a region, which did not cover it; "
            "import frameworks before"
        )
    elif found := [name for name in _FRAMEWORKS if name in sys.modules]:
        _once(
            "a region changed nothing: no adapter is installed for "
            f"{', '.join(found)}; `unamp doctor` shows those that are"
        )
    else:
        _once(
            "a region changed nothing: no framework was imported before it was opened, "
            "nor inside it"
        )


def never_ran(op: str) -> None:
    """Warn of an operation that a policy allows and that a trace did not see."""
    _once(
        f"{op!r} is on your allow list and never ran while it was traced: maybe another operation "
        "is what runs (the trace's table shows which)"
    )


def not_reached(op: str, kind: str) -> None:
    """Warn of an argument of a registered operation that holds tensors and cannot be opened."""
    _once(
        f"{op!r} is called with a {kind}, and no rule casts the tensors in it: hand them over by "
        "themselves, or tell the framework of the class (see Containers in docs/policies.md)"
    )


def rules_not_applied(path: str, count: int) -> None:
    """Warn of a region from a file whose rules for layers were put on no network."""
    _once(
        f"{path} has {count} rules for layers, which a region does not put on: "
        "unamp.layer_policies(network, unamp.Precision.read(path).layers) does"
    )


def lists_changed(file: str, changes: Sequence[str]) -> None:
    """Warn of a file made with other lists; see `unamp.made_with.changes_since`."""
    for change in changes:
        _once(f"{file} was {change}")


def graph_ran(framework: str, what: str, instead: str) -> None:
    """Warn of a graph that ran under a trace, which sees eager code alone."""
    if traces.pauses:
        return
    _once(
        f"a graph of {what} ran in a trace, which sees eager code only: what is in the graph is "
        f"missing there; {instead}",
        through=(framework, "keras"),
    )


def no_step(steps: int) -> None:
    """Warn of a trace of chosen steps that recorded nothing.

    Either `step` was called too rarely, or nothing ran that a trace sees.
    """
    _once(
        f"unamp.trace(steps=...) recorded nothing: its step() was called {steps} times; "
        "call it at the end of every step"
    )


def moves_statistics(layers: str) -> None:
    """Warn of a search on a network in training mode: each of its runs moves running statistics."""
    _once(
        "unamp.tune: the network is in training mode, and every run moves the running statistics "
        f"of {layers}, also where it overflows; tune a copy, or call network.eval() before"
    )


def keeps_its_dtype(framework: str, layer: str, low: str) -> None:
    """Warn of a layer that keeps a low dtype of its own, where the policy's is another one."""
    _once(
        f"{layer} was made to compute in a dtype of its own and keeps it, where the region "
        f"computes in {low}; make it without that dtype and the region decides, or open the region "
        "in the dtype that it has",
        through=(framework, "flax"),
    )


def follows_the_region(framework: str, layer: str, name: str, low: str) -> None:
    """Warn of a layer of Keras that states float32, where the region's policy makes it low."""
    _once(
        f"{layer} {name!r} was made with dtype='float32' and computes in {low} here: float32 is "
        "what every layer of Keras has, and in a region the policy decides; to keep a layer in "
        "float32, decorate its call with unamp.autocast(dtype='float32') in a class of your own",
        key=(framework, layer, low),  # once for a class, however many of it there are
        through=(framework, "keras"),
    )


def newer_than_examined(framework: str, version: str, examined: str) -> None:
    """Warn of a framework's version that is newer than any its adapter was examined with."""
    if major_minor(version) > major_minor(examined):
        _once(
            f"{framework} {version} is newer than any that unamp was examined with ({examined}); "
            "all that unamp needs of it was found; 'unamp conformance' tells whether rules are "
            "followed",
            through=(framework,),
        )


def has_no_hook(library: str, name: str) -> None:
    """Warn where a library on a framework lacks a private part that a region replaces.

    Args:
        library: the library with its version.
        name: the part, with its module.
    """
    _once(
        f"{library} has no {name}, which unamp replaces while a region is open: what calls it may "
        "lose the policy there, or raise; update unamp, or install a version of the library that "
        "has it"
    )


def called_apart(layer: str, network: str, name: str) -> None:
    """Warn of a layer that is called by itself, where its network may have a rule for it.

    The rule holds inside the network's call alone.
    """
    _once(
        f"a {layer} was called by itself, and {network} has a rule for {name!r}, which is one: on "
        "JAX a rule for a layer holds inside a call of its network alone. Call the "
        f"{network}, or decorate what calls the layer with a region"
    )


def no_layer_of_network(layer: str, network: str, name: str) -> None:
    """Warn of a layer that is called inside a network and holds none of the network's arrays.

    The network has a rule for one of its own layers of the same class.
    """
    _once(
        f"a {layer} was called inside {network}, which has a rule for {name!r}: the {layer} has "
        "none of its arrays, so it is another layer, and has no rule. Where its arrays are "
        "computed from those in the call, open a region around it there"
    )


def trivial_answer(said: str) -> None:
    """Warn of a search whose answer was clear without it."""
    _once(f"unamp.tune: {said}")


def unknown_masters(names: Sequence[str]) -> None:
    """Warn of master weights in a loaded state for which the optimizer has no parameter."""
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    _once(
        "the optimizer's loaded state has master weights of parameters that it does not have "
        f"({listed}): they are dropped; master weights start as what the parameters are; give the "
        "network the parameter names that were saved"
    )


def _once(
    message: str,
    *,
    key: object = None,
    through: tuple[str, ...] = (),
    category: type[Warning] = AmpWarning,
) -> None:
    """Warn once in a process for each key; without a key, once for each message."""
    with _lock:
        if (said := key or message) in _given:
            return
        _given.add(said)
    warnings.warn(message, category, stacklevel=_depth_of_user_code(through))


def _depth_of_user_code(through: tuple[str, ...]) -> int:
    """Return the `stacklevel` in `_once` of the nearest caller outside unamp and `through`."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_passed_through(
        frame.f_globals.get("__name__", ""), through
    ):
        depth, frame = depth + 1, frame.f_back
    return depth


def _is_passed_through(module: str, through: tuple[str, ...]) -> bool:
    package = module.partition(".")[0]
    return package == "unamp" or package.startswith("unamp_") or package in through
