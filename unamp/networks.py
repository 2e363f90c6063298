"""Networks with a policy of their own, in the spelling of MindSpore's `auto_mixed_precision`."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from unamp._function_types import Function
from unamp.adapter import Adapter
from unamp.adapter.arguments import cast_eligible
from unamp.adapter.registry import owner
from unamp.errors import unknown
from unamp.policy import Policy
from unamp.regions import policy_region
from unamp.typing import DtypeLike, PresetName

Network = TypeVar("Network")

_LEVELS = ("O0", "O1", "O2", "O3")


def auto_mixed_precision(
    network: Network,
    amp_level: Literal["O0", "O1", "O2", "O3"] = "O0",
    dtype: DtypeLike = "float16",
    *,
    preset: PresetName = "mindspore",
) -> Network:
    """Return a network that computes under a policy and returns float32.

    It is made as `mindspore.amp.auto_mixed_precision` makes one.

    At O1 the operations of the preset's allow list run low, and their results are cast back to
    float32 at once. At O2 everything runs low but the deny list, at O3 everything; the network's
    inputs are cast. Parameters stay as they are, and both networks share them: training one trains
    the other.

    Args:
        network: a network of a framework that is imported: a torch.nn.Module, paddle.nn.Layer,
            mindspore.nn.Cell, a model of Keras, or a module of flax or equinox.
        amp_level: ``"O0"`` (the network itself is returned), ``"O1"``, ``"O2"`` or ``"O3"``.
        dtype: the low precision; see `Policy`.
        preset: the lists; see `unamp.presets.PRESETS`.

    Raises:
        ValueError: for another level, dtype or preset.
        TypeError: where ``network`` is no network of an imported framework.

    Semantics:
    https://www.mindspore.cn/docs/en/r2.7.0/api_python/amp/mindspore.amp.auto_mixed_precision.html
    """
    if amp_level not in _LEVELS:
        raise ValueError(unknown("amp_level", amp_level, _LEVELS))
    policy = Policy(amp_level, dtype, preset=preset, widen_results=amp_level == "O1")
    adapter = owner(network, "network")
    if adapter is None:
        raise TypeError(
            "network must be a torch.nn.Module, paddle.nn.Layer, mindspore.nn.Cell, keras.Model, "
            "flax.nnx.Module, flax.linen.Module or equinox.Module, of a framework that is "
            f"imported and has an adapter installed; not {type(network).__name__}"
        )
    wrapped: Network = adapter.wrap(network, policy) if policy.active else network
    return wrapped


def call_under(adapter: Adapter, policy: Policy, call: Function, *args: Any, **kwargs: Any) -> Any:
    """Call `call` under `policy`, with its floating inputs cast at O2 and O3.

    Return float32 where `returns_float32` says so. For adapters, to carry out `Adapter.wrap`.
    """
    if policy.level in ("O2", "O3"):
        args, kwargs = (
            cast_eligible(adapter, args, policy.dtype),
            cast_eligible(adapter, kwargs, policy.dtype),
        )
    with policy_region(policy, framework=adapter.framework):
        result = call(*args, **kwargs)
    return cast_eligible(adapter, result, "float32") if returns_float32(policy) else result


def returns_float32(policy: Policy) -> bool:
    """Return whether a network returns float32: at O2 and O3, and with ``widen_results``."""
    return policy.level in ("O2", "O3") or policy.widen_results
