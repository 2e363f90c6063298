"""`GradScaler`: loss scaling with the interface of torch.amp's, for every framework.

It multiplies losses by the loss scale, so that gradients in float16 do not vanish, divides the
gradients by it before the optimizer sees them, skips the steps whose gradients overflowed, and
adjusts the scale. `LossScale` knows the scale; the frameworks' adapters know the gradients.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from unamp._argument_names import also_called
from unamp.adapter import Adapter, Gradients, registry
from unamp.adapter.framework_types import Optimizer
from unamp.adapter.observing import any_trace, untraced
from unamp.adapter.open_traces import traces
from unamp.policy import Policy
from unamp.regions import open_regions, policy_region
from unamp.scaling.loss_scale import SMALLEST, LossScale, number

_OFF = Policy(enabled=False)

_NO_CLOSURE = (
    "step() takes no closure: the optimizer would compute gradients anew, scaled and not checked. "
    "Where the optimizer calls it once (SGD, Adam), call it before: closure(); "
    "scaler.step(optimizer). Where it searches with it (LBFGS), no scale can be right for all "
    "calls: compute in bfloat16 or float32, which need none, and write optimizer.step(closure), "
    "or unamp.GradScaler(enabled=False)"
)


class NothingChecked(RuntimeError):
    """There are no gradients to check, or none were checked."""


class _Pending:
    """An optimizer between two updates, with its gradients unscaled; it may have stepped."""

    def __init__(self, optimizer: object, gradients: Gradients, given: object) -> None:
        self.optimizer = optimizer  # kept, so that its id stays its own
        self.gradients = gradients
        #: The gradients that were handed over, for `step` to recognize them; of a list its members,
        #: since the list may get other ones.
        self.scaled = list(given) if isinstance(given, (list, tuple)) else given
        self.stepped = False


class GradScaler:
    """Scales losses and unscales gradients, skips the steps that overflow, and adjusts the scale.

    ::

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # optional: to clip or look at the gradients
        scaler.step(optimizer)
        scaler.update()

    One scaler serves the models, losses and optimizers of one training, in one framework: the first
    whose loss it scaled.

    Args:
        init_scale: the scale to start with.
        growth_factor: the factor of the scale after `growth_interval` updates in a row without an
            overflow.
        backoff_factor: the factor of the scale after `backoff_interval` updates in a row with one.
        growth_interval: see `growth_factor`.
        enabled: False makes it do nothing: losses stay as they are, and every step is taken.
        backoff_interval: see `backoff_factor`; torch's is always 1.
        dynamic: False keeps the scale where it is; steps that overflow are skipped all the same,
            and no `update` is needed.
        minimum, maximum: the bounds of the scale.

    Raises:
        TypeError, ValueError: for bad arguments.

    Semantics: https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler
    """

    @also_called(
        "GradScaler",
        init_loss_scaling="init_scale",
        scale_value="init_scale",
        initial_scale="init_scale",
        incr_ratio="growth_factor",
        scale_factor="growth_factor",
        decr_ratio="backoff_factor",
        incr_every_n_steps="growth_interval",
        scale_window="growth_interval",
        dynamic_growth_steps="growth_interval",
        decr_every_n_nan_or_inf="backoff_interval",
        use_dynamic_loss_scaling="dynamic",
        enable="enabled",
    )
    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        backoff_interval: int = 1,
        dynamic: bool = True,
        minimum: float = SMALLEST,
        maximum: float = math.inf,
    ) -> None:
        if isinstance(init_scale, str):
            raise TypeError(
                f"init_scale must be a number, not {init_scale!r}; a scaler needs no device: "
                "it serves every one"
            )
        self._loss_scale = LossScale(
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            backoff_interval,
            dynamic=dynamic,
            minimum=minimum,
            maximum=maximum,
        ).checked()
        self._enabled = bool(enabled)
        self._adapter: Adapter | None = None
        self._pending: dict[int, _Pending] = {}
        #: The number of steps that were skipped, over all optimizers, since the scaler was made.
        self.skipped = 0

    def __repr__(self) -> str:
        return f"GradScaler({self.get_scale()!r})" if self._enabled else "GradScaler(enabled=False)"

    def __getstate__(self) -> dict[str, object]:
        if self._pending:
            raise RuntimeError(
                "a scaler can be copied and pickled between update() and the next step, "
                "not in between"
            )
        return vars(self) | {"_adapter": None, "_pending": {}}

    def is_enabled(self) -> bool:
        """Return whether the scaler is enabled; a disabled one does nothing."""
        return self._enabled

    def get_scale(self) -> float:
        """Return the loss scale; 1.0 where the scaler is disabled."""
        return self._loss_scale.scale if self._enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """Return a loss times the scale, or several losses, nested in lists, tuples and the like.

        The product is computed outside of every policy.

        Raises:
            TypeError: for what holds anything but one framework's tensors.
        """
        if not self._enabled:
            return outputs
        if any_trace():
            traces.innermost.scaled_by(self._loss_scale.scale)
        with no_policy():
            return self._scaled(outputs)

    def unscale_(self, optimizer: Any, gradients: Any = None) -> Any:
        """Divide an optimizer's gradients by the scale, to clip or look at them before `step`.

        Args:
            optimizer: the optimizer.
            gradients: the gradients, in a framework where they are handed to the optimizer and not
                held by its parameters.

        Returns:
            The unscaled gradients where they were given, else None.

        Raises:
            RuntimeError: for a second call before `update`, or where no loss has been scaled.
            TypeError: for a value that is no optimizer of the scaler's framework.
            ValueError: where gradients are float16: the parameters are low already, and unscaled
                gradients could vanish in that dtype.
        """
        if not self._enabled:
            return gradients
        pending = self._pending.get(id(optimizer))
        if pending is not None:
            said = "step() was called before it" if pending.stepped else "it was called already"
            raise RuntimeError(
                "unscale_() is called once for each optimizer, before its step; "
                f"{said} since the last update()"
            )
        pending = self._pending[id(optimizer)] = self._unscaled(optimizer, gradients)
        return pending.gradients.values

    def step(self, optimizer: Any, *args: Any, gradients: Any = None, **kwargs: Any) -> bool:
        """Unscale an optimizer's gradients, unless that is done, and step where they are finite.

        No policy is in force in the step, whatever region is open.

        Args:
            optimizer: the optimizer.
            *args: for the optimizer's own step. A closure is passed on where the scaler is
                disabled, and refused where it is enabled.
            gradients: as for `unscale_`; after a call of that, the gradients that it returned, or
                what was made of them.
            **kwargs: for the optimizer's own step.

        Returns:
            Whether the step was taken.

        Raises:
            RuntimeError: for a second call before `update`, without gradients, or with a closure.
            TypeError, ValueError: as `unscale_`; and for gradients that would reach the optimizer's
                step still scaled.
        """
        return self._stepped(optimizer, gradients, args, kwargs)[0]

    def minimize(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Do `step` and `update` in one, in the spelling of `paddle.amp.GradScaler.minimize`.

        Args:
            optimizer: the optimizer, one that has `minimize`.
            *args: for the optimizer's own ``minimize``: the scaled loss, after ``backward()``.
            **kwargs: for the optimizer's own ``minimize``.

        Returns:
            The result of the optimizer's ``minimize``; ``(None, None)`` for a skipped step.

        Raises:
            TypeError: for an optimizer without ``minimize``; else as `step`.
        """
        if not callable(getattr(optimizer, "minimize", None)):
            raise TypeError(
                f"{type(optimizer).__name__} has no minimize(); call step() and update()"
            )
        if not self._enabled:
            with no_policy():
                return optimizer.minimize(*args, **kwargs)
        taken, result = self._step(
            optimizer, None, lambda held: optimizer.minimize(*args, **kwargs)
        )
        self.update()
        return result if taken else (None, None)

    def update(self, new_scale: Any = None) -> None:
        """Adjust the scale after the steps of an iteration; an overflow in any of them counts.

        Args:
            new_scale: the scale to set instead: a number, or a tensor that holds one.

        Raises:
            RuntimeError: where no gradients have been checked since the last update.
            TypeError, ValueError: for a scale that is no number or out of bounds.
        """
        if not self._enabled:
            return
        if new_scale is not None:
            self._set(scale=number(new_scale, "new_scale"))
        elif self._loss_scale.dynamic:
            found = [
                found
                for each in self._pending.values()
                if (found := each.gradients.overflow()) is not None
            ]
            if not found:
                raise NothingChecked(
                    "update() found no gradients that were checked; call step() "
                    "or unscale_() before it"
                )
            self._loss_scale = self._loss_scale.after(any(found))
        self._pending.clear()

    def first_nonfinite(
        self, optimizer: Any, network: Any = None, gradients: Any = None
    ) -> str | None:
        """Return the name of the first parameter whose gradient is infinite or NaN.

        It shows where a skipped step went wrong. It looks at the gradients when it is called: call
        it before they are cleared.

        Args:
            optimizer: the optimizer, whose parameters are looked through in its order.
            network: the network whose names for the parameters to use; None: the framework's or the
                optimizer's own.
            gradients: as for `unscale_`.

        Returns:
            The name; None where every gradient is finite.
        """
        with no_policy():
            return (
                self._adapter_of_optimizer(optimizer)
                .gradients(optimizer, gradients)
                .first_nonfinite(network)
            )

    def state_dict(self, form: str = "unamp") -> dict[str, Any]:
        """Return the state to save; empty where the scaler is disabled.

        Args:
            form: the scaler whose keys the state has: ``"unamp"``, ``"torch"``, ``"paddle"``,
                ``"mindspore"`` or ``"keras"``. ``"unamp"`` has torch's keys and a few more, and
                `torch.amp.GradScaler` loads it, too. For rules that torch's scaler does not have (a
                scale that is not dynamic, a `backoff_interval`) it misses a key, and does not load.

        Raises:
            ValueError: for an unknown form, and where that framework's scaler has no such rules.
        """
        state = self._loss_scale.state(form)
        return state if self._enabled else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state in any of the forms of `state_dict`; a disabled scaler ignores it.

        Raises:
            RuntimeError: for the empty state of a disabled scaler.
            TypeError, ValueError: where the keys or the values are not those of a scaler's state.
        """
        if not self._enabled:
            return
        if isinstance(state_dict, Mapping) and not state_dict:
            raise RuntimeError(
                "the state is empty: it was saved from a scaler that was disabled; "
                "nothing was loaded"
            )
        self._loss_scale = self._loss_scale.restored(state_dict)
        self._pending.clear()

    def _set(self, **rules: Any) -> None:
        """Set another scale, or other rules for it; raise an error where they do not fit."""
        self._loss_scale = self._loss_scale._replace(**rules).checked()

    def _scaled(self, outputs: object) -> Any:
        adapter = self._owner(outputs, lambda each: each.is_tensor(outputs))
        if adapter is None:
            return self._scaled_each(outputs)
        self._adapter = adapter
        return adapter.scale_loss(outputs, self._loss_scale.scale)

    def _scaled_each(self, outputs: Any) -> object:
        if not isinstance(outputs, Iterable) or isinstance(outputs, (str, bytes, Mapping)):
            registry.check_suitable(outputs)
            raise TypeError(
                f"scale() takes tensors, and lists and tuples of them, not {type(outputs).__name__}"
            )
        scaled = [self._scaled(each) for each in outputs]
        if not isinstance(outputs, tuple):
            return scaled
        return type(outputs)(*scaled) if hasattr(outputs, "_fields") else type(outputs)(scaled)

    def _unscaled(self, optimizer: object, given: object) -> _Pending:
        adapter = self._adapter_of_optimizer(optimizer)
        if self._adapter is None:
            if not adapter.holds_gradients:
                # its error, for such an optimizer or for missing gradients, goes before that below
                adapter.gradients(optimizer, given)
            raise RuntimeError(
                "no loss has been scaled; call scale(loss) and its backward pass first. A compiled "
                "function that multiplies its loss by get_scale() takes scale(one) instead, "
                "one being a tensor that holds 1.0"
            )
        gradients = adapter.gradients(optimizer, given)
        if "float16" in gradients.dtypes():
            raise ValueError(
                "there are float16 gradients: the optimizer's parameters are low already; keep "
                "parameters in float32 and let a region cast them, "
                "or give the optimizer float32 master weights"
            )
        with no_policy():
            gradients.unscale(self._loss_scale.scale)
        return _Pending(optimizer, gradients, given)

    def _handed_to(self, optimizer: Optimizer) -> dict[str, object]:
        """Return the scaler as a keyword argument for a step that takes it, else no argument."""
        if not _takes_scaler(optimizer):
            return {}
        warnings.warn(
            f"{type(optimizer).__name__}.step takes grad_scaler=, which torch.amp.GradScaler is "
            "going to pass no longer; let it use the attributes grad_scale and found_inf of the "
            "optimizer instead",
            FutureWarning,
            stacklevel=4,
        )
        return {"grad_scaler": self}

    def _step_of_its_own(
        self, optimizer: object, take: Callable[[Gradients], object]
    ) -> tuple[bool, object]:
        """Let an optimizer that takes the scaler unscale, check and skip by itself."""
        with no_policy():
            result = take(self._adapter_of_optimizer(optimizer).gradients(optimizer, None))
        pending = self._pending.get(id(optimizer))
        if pending is None:
            return True, result
        pending.stepped = True
        return not pending.gradients.overflow(), result

    def _stepped(
        self, optimizer: object, given: object, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[bool, object]:
        """Do as `step` does; return whether the step was taken, and the optimizer's own result.

        The result is None where the step was skipped.
        """
        closure = _has_closure(args, kwargs)
        if not self._enabled:
            held = self._adapter_of_optimizer(optimizer).gradients(optimizer, given)
            with nullcontext() if closure else no_policy():  # a closure computes the loss
                return True, held.apply(*args, **kwargs)
        if closure:
            raise RuntimeError(_NO_CLOSURE)
        if given is not None and id(optimizer) not in self._pending:
            _check_once(given, args, kwargs)
        arguments = {**kwargs, **self._handed_to(optimizer)}
        return self._step(optimizer, given, lambda held: held.apply(*args, **arguments))

    def _step(
        self, optimizer: object, given: object, take: Callable[[Gradients], object]
    ) -> tuple[bool, object]:
        """Return whether a step was taken, and what `take` returned, which takes it."""
        pending = self._pending.get(id(optimizer))
        if _takes_scaler(optimizer) and not (pending is not None and pending.stepped):
            return self._step_of_its_own(optimizer, take)
        if pending is None:
            pending = self._unscaled(optimizer, given)
        elif pending.stepped:
            raise RuntimeError(
                "step() was called already for this optimizer since the last update()"
            )
        elif given is not None:
            if pending.gradients.values is None:
                raise TypeError(
                    "unscale_() was called without gradients: "
                    "the optimizer's parameters hold them, and step() takes none"
                )
            if _same(given, pending.scaled):
                raise ValueError(
                    "step() was given the scaled gradients, which unscale_() left as they were; "
                    "hand over the ones that it returned: "
                    "gradients = scaler.unscale_(optimizer, gradients)"
                )
            pending.gradients.values = given
        overflow = pending.gradients.overflow()
        if overflow is None:
            raise NothingChecked(
                "none of the optimizer's parameters has a gradient; "
                "run the backward pass of a scaled loss first"
            )
        if given is None:
            # Held gradients are unscaled in place, also if the step raises. Gradients that were
            # handed over come scaled again.
            self._pending[id(optimizer)] = pending
        result = None
        if overflow:
            self.skipped += 1
        else:
            with no_policy():
                result = take(pending.gradients)
        self._pending[id(optimizer)] = pending
        pending.stepped = True
        if not self._loss_scale.dynamic:
            del self._pending[id(optimizer)]
        return not overflow, result

    def _adapter_of_optimizer(self, optimizer: object) -> Adapter:
        adapter = self._owner(optimizer, lambda each: each.is_optimizer(optimizer))
        if adapter is None:
            registry.check_suitable(optimizer)
            known = ", ".join(each.framework for each in registry.adapters_in_use()) or "none"
            raise TypeError(
                f"{type(optimizer).__name__} is no optimizer of a framework that is in use: {known}"
            )
        return adapter

    def _owner(self, value: object, knows: Callable[[Adapter], bool]) -> Adapter | None:
        """Return the adapter that knows a value, if any; refuse any but the scaler's own."""
        own = self._adapter
        if own is not None and knows(own):
            return own
        adapter = next((each for each in registry.adapters_in_use() if knows(each)), None)
        if own is not None and adapter is not None:
            raise TypeError(
                f"this scaler scales losses of {own.framework}; {type(value).__name__} is "
                f"{adapter.framework}'s, which needs a scaler of its own"
            )
        return adapter


def is_unscaled(scaler: GradScaler, optimizer: object) -> bool:
    """Return whether an optimizer's gradients were unscaled since the last update.

    None asks about any optimizer.
    """
    return bool(scaler._pending) if optimizer is None else id(optimizer) in scaler._pending


def _takes_scaler(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's step takes the scaler and unscales by itself, as in PyTorch."""
    supports = getattr(optimizer, "_step_supports_amp_scaling", False)
    return supports and "grad_scaler" in inspect.signature(optimizer.step).parameters


def _same(gradients: object, before: object) -> bool:
    """Return whether gradients are, one by one, the objects that were handed over before."""
    if not isinstance(before, list):
        return gradients is before
    pairs = (
        list(zip(gradients, before, strict=False)) if isinstance(gradients, (list, tuple)) else []
    )
    return (
        any(each is not None for each in before)
        and len(pairs) == len(before)
        and all(a is b for a, b in pairs)
    )


def _check_once(gradients: object, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise ValueError where a step gets the scaled gradients as an argument of its own, too.

    The scaler unscales only those in ``gradients``.
    """
    if any(each is gradients for each in (*args, *kwargs.values())):
        raise ValueError(
            "step() was given the scaled gradients a second time, as an argument of the "
            "optimizer's own step, which would use them scaled and not checked. Unscale them "
            "before: gradients = scaler.unscale_(optimizer, gradients); then hand these to step(), "
            "as gradients= and as the optimizer's argument"
        )


def _has_closure(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    # A network is callable, too, and optimizers that do not hold what they step take one.
    return "closure" in kwargs or any(
        callable(each) and registry.owner(each, "network") is None for each in args
    )


def no_policy() -> AbstractContextManager[object]:
    """Return a context without policies and traces, for loss scaling and optimizers' steps."""
    inside = policy_region(_OFF) if open_regions() else nullcontext()
    return _aside(inside) if any_trace() else inside


@contextmanager
def _aside(inside: AbstractContextManager[object]) -> Iterator[None]:
    with untraced(), inside:
        yield
