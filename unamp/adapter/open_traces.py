"""The observer to which a thread reports its operations, and the layers that the thread is in."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from unamp.adapter.framework_types import Layer
from unamp.adapter.gradient_hooks import GradientHook
from unamp.adapter.kept_calls import Keeper
from unamp.adapter.records import OpRecord, Values
from unamp.adapter.shadowing import PRODUCTS


class Emulation:
    """Layers whose products are computed from float8, for the study of `unamp.tune`.

    Args:
        dtype: the dtype of the factors, one of `unamp.dtypes.FLOAT8`.
        layers: the layers, as records name them.

    Attributes:
        reached: the layers in which a product was computed from float8; none with an adapter that
            does not know of this.
    """

    def __init__(self, dtype: str, layers: frozenset[str]) -> None:
        self.dtype, self.layers = dtype, layers
        self.reached: set[str] = set()

    def takes(self, op: str, layer: str | None) -> bool:
        """Return whether an operation of a layer is computed from float8, and note the layer."""
        if op not in PRODUCTS or layer is None or layer not in self.layers:
            return False
        self.reached.add(layer)
        return True


class _Traces(threading.local):
    """The traces of one thread.

    Attributes:
        innermost: the `unamp.trace` that was opened last; None where none is open.
        pauses: the number of open contexts in which nothing is recorded.
        shadow: the low dtype in which operations are computed a second time; None where no open
            trace asks for that.
        keeper: keeps the arguments of operations; None where no open trace asks for that.
        float8: the layers whose products are computed from float8; None where there are none.
    """

    innermost: Any = None
    pauses: int = 0
    shadow: str | None = None
    keeper: Keeper | None = None
    float8: Emulation | None = None

    @property
    def waiting(self) -> bool:
        """Return whether no trace of this thread records what runs now."""
        return self.pauses > 0 or (self.innermost is not None and not self.innermost.recording)

    @property
    def gradients(self) -> bool:
        """Return whether a trace of this thread wants the gradients of what runs now."""
        return self.innermost is not None and not self.pauses and bool(self.innermost.following)


traces = _Traces()


def parameter_hook(name: str, parameter: object = None) -> GradientHook | None:
    """Return the hook for a parameter's gradients; see `unamp.tracing.Trace.parameter_hook`."""
    return traces.innermost.parameter_hook(name, parameter) if traces.gradients else None


class Layers:
    """The layers that a thread is inside of, by the names that their network gives them.

    Nothing is kept once the outermost layer has returned.

    Args:
        named: returns the layers inside a network, with their names.
        own: returns the name of a layer that its network does not name; by default its class.
        follow: puts hooks on the parameters of a network, given its name, where their gradients are
            wanted; see `parameter_hook`. None where parameters take no hooks.
    """

    def __init__(
        self,
        named: Callable[[Layer], Iterable[tuple[str, Layer]]],
        own: Callable[[Layer], str] = lambda layer: type(layer).__name__,
        follow: Callable[[str, Layer], None] | None = None,
    ) -> None:
        self._named = named
        self._own = own
        self._follow = follow
        # each with its layer, which stays alive as long as its id is a key
        self._names: dict[int, tuple[str, object]] = {}
        self._open: list[str] = []
        self._network: object = None
        self._called: dict[str, weakref.ref[object]] = {}

    @property
    def path(self) -> str | None:
        """The layer that the thread is in: ``"Net.encoder.0"``; None outside of layers."""
        return self._open[-1] if self._open else None

    def enter(self, layer: object) -> None:
        """Note that a layer is called."""
        if not self._open:
            network = type(layer).__name__
            self._add(network, layer)
            self._open.append(network)
            self._network = layer
            self._follow_parameters(network)
        else:
            known = self._names.get(id(layer))
            self._open.append(self._unnamed(layer) if known is None else known[0])
        if traces.gradients:
            self._called[self._open[-1]] = weakref.ref(layer)

    def of_parameter(self, path: str) -> str | None:
        """Return the name of a parameter by its layer, given its path in a pytree.

        None where no network has it, or several have. A network has a path that begins as linen's
        or nnx's do, or with one of its layers that were called.
        """
        inside = re.sub(r"^(params|states\.\d+)\.", "", path)
        outer, _, name = inside.partition(".")
        networks = {
            network
            for network, *inner in (layer.split(".") for layer in self._called)
            if inside != path or (name and outer in inner[:1])
        }
        return f"{networks.pop()}.{inside}" if len(networks) == 1 else None

    def variables(self) -> dict[int, str]:
        """Return the names of trained variables of the Keras layers that were called, by ids."""
        found: dict[int, str] = {}
        # The innermost layer comes last, and its name stays.
        for path, layer in sorted(self._called.items(), key=lambda each: each[0].count(".")):
            for variable in getattr(layer(), "trainable_variables", ()):
                found[id(variable)] = f"{path}.{variable.name}"
        return found

    def leave(self) -> None:
        """Note that the innermost layer returned, or raised."""
        left = self._open.pop() if self._open else None
        if not self._open:
            if left is not None:
                self._follow_parameters(left)  # again: layers may have made some in this call
            self._names, self._network = {}, None

    def _follow_parameters(self, network: str) -> None:
        if self._follow is not None and self._network is not None and traces.gradients:
            self._follow(network, self._network)

    def _add(self, name: str, layer: object) -> None:
        self._names.update(
            {
                id(inner): (f"{name}.{own}", inner)
                for own, inner in self._named(layer)
                if inner is not layer
            }
        )

    def _unnamed(self, layer: object) -> str:
        return f"{self._open[-1]}.{self._own(layer)}"


#: Takes records; see `Observer`.
Sink = Callable[[OpRecord], GradientHook | None]


class Observer:
    """The receiver of a thread's reports while `unamp.trace` is open.

    Args:
        framework: the framework's import name.
        sink: takes the records, and returns a hook where the gradients of the results are wanted.
        values, layers: see below.

    Attributes:
        values: whether the records have statistics of the results.
        layers: the layers that the thread is inside of.
    """

    def __init__(self, framework: str, sink: Sink, values: bool, layers: Layers) -> None:
        self._framework = framework
        self._sink = sink
        self.values = values
        self.layers = layers

    def report(
        self,
        record: OpRecord,
        values: Callable[[], Values | None],
        follow: Callable[[GradientHook], None] | None = None,
    ) -> None:
        """Report one operation.

        Args:
            record: the operation. It ran in the layer that the record names, if any, else in the
                layer that the thread is in now.
            values: returns the statistics of the results; it is called only where they are wanted,
                and may wait for the device.
            follow: puts a hook on the results, where their gradients are wanted; None where the
                adapter cannot.
        """
        if traces.waiting:
            return
        wanted = values() if self.values else None
        layer = record.layer or self.layers.path
        hook = self._sink(record._replace(framework=self._framework, layer=layer, values=wanted))
        if hook is None:
            return
        if follow is None:
            hook.leave_out(f"the adapter for {self._framework} follows no gradients of it")
        else:
            follow(hook)
