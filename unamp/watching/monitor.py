"""`unamp.watch`: a monitor that samples one step of many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from types import TracebackType
from typing import Any

from unamp.adapter import Adapter, registry
from unamp.adapter.contract import NamesGradients
from unamp.adapter.framework_types import Tensor
from unamp.dtypes import LOW_DTYPES, PRECISIONS, low_dtype
from unamp.errors import NotExpressible
from unamp.scaling import GradScaler, is_unscaled, no_policy
from unamp.scaling.loss_scale import number
from unamp.watching.history import History
from unamp.watching.measuring import Measurement
from unamp.watching.samples import LIMIT, Sample, line
from unamp.watching.writers import sink

_LEAST_KEPT = 10

#: A parameter's name, the parameter, and its gradient.
_Named = tuple[str, Any, Any]


def watch(
    network: Any,
    optimizer: Any = None,
    *,
    scaler: GradScaler | None = None,
    every: int = 50,
    dtype: object = "float16",
    to: Any = (),
    keep: int = 400,
) -> Watch:
    """Return a monitor of a training, for thousands of steps.

    ::

        watch = unamp.watch(network, optimizer, scaler=scaler, to=print)
        for ...:
            scaler.scale(loss).backward()
            with watch.step():
                scaler.step(optimizer)
                scaler.update()

    The monitor samples one of `every` steps; the others cost next to nothing. Numbers are computed
    on the tensors' device, with no policy in force, and fetched once per sample.

    Args:
        network: the network; in JAX also a pytree of parameters.
        optimizer: its optimizer. Without it, updates of low parameters are not watched.
        scaler: the `unamp.GradScaler` in use, if any: for the loss scale and the skipped steps.
        every: the number of steps for one sample; the first step is sampled.
        dtype: the low dtype whose underflow is counted: that of the regions.
        to: a further receiver of samples, or a list of them: an object with ``add_scalar(tag,
            value, step)`` (TensorBoard's writers), an object with ``log({...}, step=)`` (a run of
            wandb), a logger, or a function of one line of text, such as `print`.
        keep: the most samples to keep. When there are more, every second one is dropped.

    Raises:
        TypeError, ValueError: for bad arguments.
        NotExpressible: where the framework's adapter does not give gradients by name.
    """
    return Watch(network, optimizer, scaler, every, low_dtype(dtype), to, keep)


class Watch:
    """A monitor of a training; `unamp.watch` makes one.

    Attributes:
        steps: the number of steps so far.
    """

    def __init__(
        self,
        network: Any,
        optimizer: Any,
        scaler: GradScaler | None,
        every: int,
        dtype: str,
        to: Any,
        keep: int,
    ) -> None:
        self._adapter = _adapter(network, optimizer)
        if scaler is not None and not isinstance(scaler, GradScaler):
            raise TypeError(
                f"scaler must be an unamp.GradScaler or None, not {type(scaler).__name__}"
            )
        self._network = network
        self._optimizer = optimizer
        self._scaler = scaler
        self._every = _whole("every", every, 1)
        self._keep = _whole("keep", keep, _LEAST_KEPT)
        self._dtype = dtype
        self._sinks = [
            sink(each, dtype) for each in (to if isinstance(to, (list, tuple)) else (to,))
        ]
        self._samples: list[Sample] = []
        self._skipped_before = 0 if scaler is None else scaler.skipped
        self._open: WatchedStep | None = None
        self.steps = 0

    def step(
        self, gradients: Any = None, *, parameters: Any = None, scale: Any = None
    ) -> WatchedStep:
        """Return the context manager for one step, from the backward pass to `update`.

        The optimizer's step belongs inside. So does the code that unscales or clips gradients:
        gradients are measured as the backward pass left them.

        Args:
            gradients: the gradients, in a framework where they are values: still scaled, as the
                scaler takes them.
            parameters: the parameters before the step, where they are values too (JAX);
                `WatchedStep.updated` takes the parameters after it. Leave them out where low
                parameters have master weights.
            scale: the loss scale, a number or an array of one number, where no `unamp.GradScaler`
                has it.

        Raises:
            TypeError, ValueError: for gradients where the parameters hold them, or no gradients
                where they are values; for a scale that is not above 0, or beside a scaler.
            RuntimeError: where the last step was not entered, or has not ended.
        """
        if self._open is not None:
            raise RuntimeError(
                "the last step() was not entered, or has not ended; write: with watch.step(): ..."
            )
        if self._adapter.holds_gradients and gradients is not None:
            raise TypeError(
                f"{self._adapter.framework}'s parameters hold their gradients: none can be given"
            )
        if not self._adapter.holds_gradients and gradients is None:
            raise TypeError(
                f"{self._adapter.framework}'s gradients are values: hand them over, "
                "as in step(gradients)"
            )
        if parameters is not None and self._adapter.holds_gradients:
            raise TypeError(
                f"{self._adapter.framework}'s parameters change where they are: step() takes none"
            )
        if scale is not None and self._scaler is not None:
            raise TypeError(
                "the scaler that watch() was given has the loss scale; step() takes none beside it"
            )
        self._open = WatchedStep(self, gradients, parameters, scale)
        return self._open

    @property
    def history(self) -> History:
        """The history so far, as a value."""
        return History(
            self._adapter.framework,
            self._dtype,
            self._every,
            self.steps,
            self._skipped(),
            tuple(self._samples),
        )

    def findings(self) -> list[str]:
        """Return a sentence for each layer with a fault; see `History.findings`."""
        return self.history.findings()

    def table(self) -> str:
        """Return the layers as plain text; see `History.table`."""
        return self.history.table()

    def line(self) -> str:
        """Return the last sample as one line of text."""
        return line(self._samples[-1], self._dtype) if self._samples else "no step yet"

    def save(self, path: str | PathLike[str]) -> None:
        """Write the history as a page (``.html``) or as JSON (``.json``); see `History.save`."""
        self.history.save(path)

    def _skipped(self) -> int:
        return 0 if self._scaler is None else self._scaler.skipped - self._skipped_before

    def _measurement(self, gradients: object, parameters: object) -> Measurement:
        """Return the measurement of the step that begins."""
        if self._scaler is not None and is_unscaled(self._scaler, self._optimizer):
            raise RuntimeError(
                "the gradients are unscaled already; write scaler.unscale_() inside of: "
                "with watch.step(): ..."
            )
        found = self._named(gradients)
        if not any(gradient is not None for _, _, gradient in found):
            raise ValueError(
                "no parameter has a gradient; the backward pass comes before step(), "
                "and zero_grad() after it"
            )
        if parameters is not None:
            found = _with_parameters(found, self._named(parameters))
        low = PRECISIONS[self._dtype]
        updates = parameters is not None or (
            self._optimizer is not None and self._steps_low(gradients)
        )
        return Measurement(self._adapter, found, low, updates=updates)

    def _named(self, values: object) -> list[_Named]:
        """Return gradients, or parameters of the same structure, by name."""
        assert isinstance(self._adapter, NamesGradients)
        return self._adapter.named_gradients(self._network, self._optimizer, values)

    def _steps_low(self, gradients: object) -> bool:
        """Return whether the optimizer steps the low parameters themselves, not master weights.

        The optimizer's gradients are float32 where it has master weights.
        """
        try:
            held = self._adapter.gradients(self._optimizer, gradients)
            return not held.dtypes().isdisjoint(LOW_DTYPES)
        except NotExpressible:  # an optax transformation steps values
            return False

    def _scale(self, given: object) -> float:
        if self._scaler is not None:
            return self._scaler.get_scale()
        scale = 1.0 if given is None else number(given, "scale")
        if not 0.0 < scale < LIMIT:
            raise ValueError(f"scale must be a finite float32 number above 0, not {scale}")
        return scale

    def _ended(self, sample: Sample | None) -> None:
        self.steps += 1
        self._open = None
        if sample is not None:
            self._samples.append(sample)
            if len(self._samples) > self._keep:
                del self._samples[1:-1:2]  # the first and the last stay
            for hand_over in self._sinks:
                hand_over(sample)


class WatchedStep:
    """One step of a training, between the backward pass and the end of the optimizer's step."""

    def __init__(self, watch: Watch, gradients: Any, parameters: Any, scale: Any) -> None:
        self._watch = watch
        self._gradients = gradients
        self._parameters = parameters
        self._given_scale = scale
        self._scale = 1.0
        self._skipped = 0
        self._measurement: Measurement | None = None
        self._updated: list[Tensor] | None = None
        self._told = False

    def updated(self, parameters: Any) -> None:
        """Take the parameters after the step, where they are values.

        Raises:
            RuntimeError: where `Watch.step` was not given the parameters before it.
        """
        if self._parameters is None:
            raise RuntimeError(
                "updated() needs the parameters before the step: "
                "watch.step(gradients, parameters=...)"
            )
        self._told = True
        if self._measurement is not None:
            found = [each for _, _, each in self._watch._named(parameters)]
            self._measurement.check_updated(found)
            self._updated = found

    def __enter__(self) -> WatchedStep:
        if self._watch._open is not self:
            raise RuntimeError("this step has ended; each one is another: with watch.step(): ...")
        try:
            if self._watch.steps % self._watch._every == 0:
                with no_policy():
                    self._scale = self._watch._scale(self._given_scale)
                    self._skipped = self._watch._skipped()
                    self._measurement = self._watch._measurement(self._gradients, self._parameters)
        except BaseException:
            self._watch._open = None
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._watch._open = None
            return
        if self._parameters is not None and not self._told:
            self._watch._open = None
            raise RuntimeError(
                "step() was given parameters; say what became of them: with watch.step(...) as "
                "step: ...; step.updated(parameters)"
            )
        self._watch._ended(self._sample() if self._measurement is not None else None)

    def _sample(self) -> Sample:
        assert self._measurement is not None
        skipped = self._watch._skipped()
        with no_policy():
            layers = self._measurement.layers(
                stepped=skipped == self._skipped, updated=self._updated
            )
        return Sample(self._watch.steps, self._scale, skipped, layers)


def _with_parameters(gradients: list[_Named], parameters: list[_Named]) -> list[_Named]:
    if [name for name, _, _ in gradients] != [name for name, _, _ in parameters]:
        raise ValueError("parameters must be of the form of the gradients, with the same names")
    return [
        (name, before, gradient)
        for (name, _, gradient), (_, _, before) in zip(gradients, parameters, strict=True)
    ]


def _adapter(network: object, optimizer: object) -> Adapter:
    of_leaves = (registry.owner(leaf, "tensor") for leaf in _leaves(network))
    found = registry.owner(network, "network") or next(filter(None, of_leaves), None)
    if found is None:
        known = ", ".join(each.framework for each in registry.adapters_in_use()) or "none"
        raise TypeError(
            f"{type(network).__name__} is no network of a framework that is in use: {known}"
        )
    if optimizer is not None and not found.is_optimizer(optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} is no optimizer of {found.framework}, "
            "which the network is of"
        )
    if not isinstance(found, NamesGradients):
        raise NotExpressible(
            f"the adapter for {found.framework} does not tell gradients by name, "
            "which unamp.watch needs"
        )
    return found


def _leaves(value: object) -> Iterator[object]:
    """Yield the leaves of nested dictionaries: parameters without a network."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner) if isinstance(inner, Mapping) else (inner,)


def _whole(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r:.40}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value
