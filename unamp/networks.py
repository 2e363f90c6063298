"""Networks that compute under a policy by themselves, in the spelling of MindSpore's `auto_mixed_precision`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from unamp.adapter import Adapter
from unamp.dtypes import ELIGIBLE
from unamp.nesting import mapped
from unamp.policy import Policy
from unamp.regions import policy_region
from unamp.registry import owner

__all__ = ["auto_mixed_precision", "twin", "under"]

Network = TypeVar("Network")

_LEVELS = ("O0", "O1", "O2", "O3")


def auto_mixed_precision(
    network: Network, amp_level: str = "O0", dtype: object = "float16", *, preset: str = "mindspore"
) -> Network:
    """A network that computes under a policy and returns float32, as `mindspore.amp.auto_mixed_precision` makes one.

    At O1 the operations of the preset's allow list run low, and their results are cast back to float32 at once. At O2
    everything runs low but the deny list, at O3 everything; the network's inputs are cast. Parameters stay as they are, and
    are those of the network that was given: training one trains the other.

    Args:
        network: a network of a framework that is imported: a torch.nn.Module, paddle.nn.Layer, mindspore.nn.Cell, or a
            model of Keras.
        amp_level: ``"O0"`` (the network itself is returned), ``"O1"``, ``"O2"`` or ``"O3"``.
        dtype: the low precision; see `Policy`.
        preset: the lists; see `unamp.presets.PRESETS`.

    Raises:
        ValueError: for another level, dtype or preset.
        TypeError: where ``network`` is no network of an imported framework.

    Semantics: https://www.mindspore.cn/docs/en/r2.7.0/api_python/amp/mindspore.amp.auto_mixed_precision.html
    """
    if amp_level not in _LEVELS:
        raise ValueError(f"unknown amp_level {amp_level!r}; valid: {', '.join(_LEVELS)}")
    policy = Policy(amp_level, dtype, preset=preset, widen_results=amp_level == "O1")
    adapter = owner(network, "network")
    if adapter is None:
        raise TypeError(
            "network must be a torch.nn.Module, paddle.nn.Layer, mindspore.nn.Cell or keras.Model, of a framework that is "
            f"imported and has an adapter installed; not {type(network).__name__}"
        )
    wrapped: Network = adapter.wrap(network, policy) if policy.active else network
    return wrapped


def under(adapter: Adapter, policy: Policy, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call gives under a policy, with its floating inputs cast where the level casts all, and float32 results.

    For adapters, to carry out `Adapter.wrap`.
    """

    def cast(value: Any, dtype: str) -> Any:
        return mapped(value, adapter.is_tensor, lambda tensor: adapter.cast(tensor, dtype) if eligible(tensor) else tensor)

    def eligible(tensor: Any) -> bool:
        return adapter.dtype_of(tensor) in ELIGIBLE

    if policy.level in ("O2", "O3"):
        args, kwargs = cast(args, policy.dtype), cast(kwargs, policy.dtype)
    with policy_region(policy, framework=adapter.framework):
        result = call(*args, **kwargs)
    return cast(result, "float32")


def twin(
    network: Any,
    method: str,
    instead: Callable[..., Any],
    again: Callable[[Any], Any],
    begin: Callable[[Any], None] = lambda made: None,
) -> Any:
    """A second object of a network's own class with the same state, of which one method is another. For adapters.

    Args:
        network: an object whose whole state is in its ``__dict__``; the twin shares it.
        method: the method.
        instead: what is called in its place, with the original (bound to the twin) before the arguments.
        again: makes the twin of another network; copies and pickles are made with it.
        begin: what a new object of the class needs before it gets its state.
    """
    kind = getattr(type(network), "_unamp_plain", type(network))
    original = getattr(kind, method)

    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        return instead(original.__get__(self), *args, **kwargs)

    def reduced(self: Any, protocol: object) -> Any:
        return again, (sharing(kind, self),)

    def sharing(of: Any, state: Any) -> Any:
        made = of.__new__(of)
        begin(made)
        object.__setattr__(made, "__dict__", vars(state))
        return made

    body = {
        method: replaced,
        "__reduce_ex__": reduced,
        "_unamp_plain": kind,
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
    }
    metaclass: Any = type(kind)
    return sharing(metaclass(kind.__name__, (kind,), body), network)
