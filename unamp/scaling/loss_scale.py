"""The loss scale: a value that returns its successor after a step, with or without overflow."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from unamp.errors import unknown

#: The smallest scale whose reciprocal float32 holds, and holds exactly.
SMALLEST = 2.0**-126

_TORCH = {
    "scale": "scale",
    "growth_factor": "growth_factor",
    "backoff_factor": "backoff_factor",
    "growth_interval": "growth_interval",
    "_growth_tracker": "growth_tracker",
}

_BESIDE = {name: name for name in ("backoff_interval", "backoff_tracker", "dynamic")}

#: The forms of a saved state: for each, its keys, and the field of `LossScale` that each key holds.
#: unamp's own is torch's with further keys; `torch.amp.GradScaler` reads the keys that it knows and
#: ignores the others. MindSpore and Keras have no `state_dict`: their keys are the attributes of
#: their scalers, which they save under those names. Sources: `state_dict` of torch.amp.GradScaler
#: (torch 2.13) and of paddle.amp.GradScaler (paddlepaddle 3.3); mindspore.amp.DynamicLossScaler
#: (mindspore 2.10) and keras.optimizers.LossScaleOptimizer (keras 3.15).
FORMS: Mapping[str, Mapping[str, str]] = {
    "unamp": _TORCH | _BESIDE,
    "torch": _TORCH,
    "paddle": {
        "scale": "scale",
        "incr_ratio": "growth_factor",
        "decr_ratio": "backoff_factor",
        "incr_every_n_steps": "growth_interval",
        "decr_every_n_nan_or_inf": "backoff_interval",
        "incr_count": "growth_tracker",
        "decr_count": "backoff_tracker",
        "use_dynamic_loss_scaling": "dynamic",
    },
    "mindspore": {
        "scale_value": "scale",
        "scale_factor": "growth_factor",
        "scale_window": "growth_interval",
        "counter": "growth_tracker",
    },
    "keras": {
        "dynamic_scale": "scale",
        "dynamic_growth_steps": "growth_interval",
        "step_counter": "growth_tracker",
    },
}

#: unamp's own form for rules that torch's scaler does not have: there it misses a key, and raises.
_NOT_FOR_TORCH = {key: field for key, field in _TORCH.items() if key != "_growth_tracker"} | _BESIDE
_NOT_FOR_TORCH |= {"growth_tracker": "growth_tracker"}

#: The fields that are counts, each with the least number that it may be.
_COUNTS = {"growth_interval": 1, "backoff_interval": 1, "growth_tracker": 0, "backoff_tracker": 0}


class LossScale(NamedTuple):
    """A loss scale, and the rules by which it moves.

    Attributes:
        scale: the factor itself, a float32 number.
        growth_factor: its factor after `growth_interval` updates in a row without an overflow.
        backoff_factor: its factor after `backoff_interval` updates in a row with one.
        growth_interval, backoff_interval: see the factors.
        growth_tracker, backoff_tracker: the number of such updates in a row until now.
        dynamic: False keeps the scale where it is.
        minimum, maximum: the bounds of the scale.
    """

    scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    backoff_interval: int = 1
    growth_tracker: int = 0
    backoff_tracker: int = 0
    dynamic: bool = True
    minimum: float = SMALLEST
    maximum: float = math.inf

    def checked(self) -> LossScale:
        """Return the same with float32 scales, float factors and integer counts.

        Raises:
            TypeError: for a value that is no number.
            ValueError: for a number that the rules cannot work with.
        """
        fields: dict[str, Any] = {}
        for name in ("scale", "minimum", "maximum"):
            fields[name] = _float32(number(getattr(self, name), name))
        for name in ("growth_factor", "backoff_factor"):
            fields[name] = number(getattr(self, name), name)
        for name, fewest in _COUNTS.items():
            fields[name] = _count(getattr(self, name), name, fewest)
        made = self._replace(dynamic=bool(self.dynamic), **fields)
        least, most = made.minimum, made.maximum
        for kept, rule in (
            (
                1.0 < made.growth_factor < math.inf,
                f"growth_factor must be above 1, not {self.growth_factor}",
            ),
            (
                0.0 < made.backoff_factor < 1.0,
                f"backoff_factor must be between 0 and 1, not {self.backoff_factor}",
            ),
            (
                SMALLEST <= least < math.inf,
                f"minimum must be a finite number of at least 2**-126, not {self.minimum}",
            ),
            (least <= most, f"maximum must be at least the minimum {least}, not {self.maximum}"),
            (
                least <= made.scale <= most and made.scale < math.inf,
                f"scale must be finite, from {least} to {most}, not {self.scale}",
            ),
        ):
            if not kept:
                raise ValueError(rule)
        return made

    def after(self, overflow: bool) -> LossScale:
        """Return the scale after one update.

        As `torch._amp_update_scale_`: products are rounded to float32, and one that float32 cannot
        hold is not taken.
        """
        if not self.dynamic:
            return self
        if overflow:
            bad = self.backoff_tracker + 1
            if bad < self.backoff_interval:
                return self._replace(growth_tracker=0, backoff_tracker=bad)
            scale = max(_float32(self.scale * self.backoff_factor), self.minimum)
            return self._replace(scale=scale, growth_tracker=0, backoff_tracker=0)
        good = self.growth_tracker + 1
        if good < self.growth_interval:
            return self._replace(growth_tracker=good, backoff_tracker=0)
        grown = _float32(self.scale * self.growth_factor)
        scale = self.scale if math.isinf(grown) else min(grown, self.maximum)
        return self._replace(scale=scale, growth_tracker=0, backoff_tracker=0)

    def state(self, form: str) -> dict[str, object]:
        """Return the state to save, in one of `FORMS`.

        Raises:
            ValueError: for an unknown form, and for one whose framework has no such rules.
        """
        if form not in FORMS:
            raise ValueError(unknown("form of a scaler's state", form, FORMS))
        if form != "unamp":
            for field, value in (_MOVES | _implied(form, self.growth_factor)).items():
                if field not in FORMS[form].values() and getattr(self, field) != value:
                    raise ValueError(
                        f"{form}'s scalers go on with {field}={value}; "
                        f"they cannot take over {getattr(self, field)}"
                    )
        plain = all(getattr(self, field) == value for field, value in _MOVES.items())
        keys = FORMS[form] if form != "unamp" or plain else _NOT_FOR_TORCH
        state = {key: getattr(self, field) for key, field in keys.items()}
        if form == "paddle":
            state["scale"] = [self.scale]  # Paddle reads the first item
        return state

    def restored(self, state: Mapping[str, Any]) -> LossScale:
        """Return the same with the values that a saved state has, in any of `FORMS`.

        Raises:
            TypeError, ValueError: where it is not such a state; the message names the keys.
        """
        form, keys = _form_of(state)
        fields = {field: state[key] for key, field in keys.items()}
        read = self._replace(**{"backoff_tracker": 0} | fields)
        return read._replace(
            **_implied(form, number(read.growth_factor, "growth_factor"))
        ).checked()


#: The values of these fields in scalers that have no such rules.
_MOVES = {"backoff_interval": 1, "dynamic": True}


def _implied(form: str, growth_factor: float) -> dict[str, Any]:
    """Return the values that a form leaves out, since its framework has no others."""
    if form == "keras":
        return _MOVES | {"growth_factor": 2.0, "backoff_factor": 0.5}
    if form == "mindspore":
        return _MOVES | {"backoff_factor": 1.0 / growth_factor if growth_factor else 0.0}
    return {}


def number(value: Any, name: str) -> float:
    """Return a number as a float, also from an array or tensor that holds nothing else.

    Raises:
        TypeError: for anything else; the message names it.
    """
    found = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    with suppress(ValueError, RuntimeError):  # it may hold more than one
        found = found.item() if hasattr(found, "item") else found
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise TypeError(f"{name} must be a number, not {value!r:.40}")
    try:
        return float(found)
    except OverflowError:
        return math.inf if found > 0 else -math.inf


def _count(value: Any, name: str, least: int) -> int:
    count = None
    with suppress(TypeError):  # tensors of every dtype have an `__index__`
        count = operator.index(value)
    if isinstance(value, bool) or count is None:
        raise TypeError(f"{name} must be an integer, not {value!r:.40}")
    if count < least:
        raise ValueError(f"{name} must be at least {least}, not {count}")
    return count


def _float32(value: float) -> float:
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.inf
    return rounded


def _form_of(state: Mapping[str, object]) -> tuple[str, Mapping[str, str]]:
    if not isinstance(state, Mapping):
        raise TypeError(f"a scaler's state is a dictionary, not {type(state).__name__}")
    for form, keys in FORMS.items():
        if state.keys() == keys.keys():
            return form, keys
    if state.keys() == _NOT_FOR_TORCH.keys():
        return "unamp", _NOT_FOR_TORCH
    form = max(
        FORMS,
        key=lambda form: (
            len(FORMS[form].keys() & state.keys()) - len(FORMS[form].keys() - state.keys())
        ),
    )
    different = {
        "missing": FORMS[form].keys() - state.keys(),
        "unknown": state.keys() - FORMS[form].keys(),
    }
    said = [
        f"{what}: {', '.join(sorted(map(repr, keys)))}" for what, keys in different.items() if keys
    ]
    raise ValueError(
        f"not a scaler's state ({', '.join(FORMS)}): its keys are nearest to {form}'s, "
        f"{'; '.join(said)}; nothing was loaded"
    )
