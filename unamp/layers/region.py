"""The region in which a layer with a rule runs."""

from __future__ import annotations

from functools import lru_cache

from unamp._compiler_marks import not_converted, once_per_trace
from unamp._function_types import Args, Keywords
from unamp.adapter import registry
from unamp.adapter.arguments import mapped
from unamp.dtypes import FLOAT32, LOW_DTYPES, POLICY_DTYPES
from unamp.lists import EVERYTHING
from unamp.policy import Policy
from unamp.regions import CapturedRegion, Region, current_policy, innermost_region

#: The low dtype of a rule "float32" where none is in force around. Nothing runs in it.
_NO_DTYPE_AROUND = "bfloat16"


class LayerRegion:
    """A rule for layers of one framework; layers with equal rules share it.

    See `unamp.adapter.layers.LayerRegion`.

    Args:
        rule: a policy, or ``"float32"``.
        framework: the framework.
        result: ``"low"``, or None.
    """

    def __init__(self, rule: Policy | str, framework: str, result: str | None) -> None:
        self.rule = rule
        self.framework = framework
        self.result = result
        self._adapter = registry.adapter_for(framework)
        # A framework may keep something for one low dtype at a time, so the policy of a rule
        # "float32" has the dtype of the region around.
        self._regions = {
            dtype: Region(
                rule if isinstance(rule, Policy) else Policy(dtype=dtype, deny=EVERYTHING),
                framework=framework,
            )
            for dtype in POLICY_DTYPES
        }

    def __reduce__(self) -> tuple[object, ...]:
        return layer_region, (self.rule, self.framework, self.result)

    def __repr__(self) -> str:
        return f"<rule for layers of {self.framework}: {self.rule!r}>"

    def policy(self, dtype: str | None = None) -> Policy:
        """Return the policy in force inside, given the dtype of the policy around."""
        return self._regions[dtype or _NO_DTYPE_AROUND].policy

    @not_converted
    def here(self) -> Region | CapturedRegion:
        """Return the context manager to enter; see `unamp.regions.Region.here`."""
        for adapter in registry.adapters_in_use():
            if adapter.compiling():
                id(self)  # so that what is traced here is used for this rule alone
                return CapturedRegion(adapter, self._key(adapter.framework))
        return self._regions[self._dtype_around() or _NO_DTYPE_AROUND]

    @not_converted
    def finished(self, result: object, args: Args, kwargs: Keywords) -> object:
        """Return a layer's result with its float32 tensors in the low dtype.

        That is the dtype in force around the layer, or else that of its inputs.
        """
        adapter, low = self._adapter, self._dtype_around()
        if low is None:
            given: list[str] = []
            mapped(
                [*args, *kwargs.values()],
                adapter.is_tensor,
                lambda tensor: given.append(adapter.dtype_of(tensor)),
            )
            low = next((dtype for dtype in given if dtype in LOW_DTYPES), None)
        if low is None or low == FLOAT32:
            return result
        dtype = low
        return mapped(
            result,
            adapter.is_tensor,
            lambda tensor: (
                adapter.cast(tensor, dtype) if adapter.dtype_of(tensor) == FLOAT32 else tensor
            ),
        )

    @once_per_trace
    def _key(self, framework: str) -> int:
        region = self._regions[self._dtype_around() or _NO_DTYPE_AROUND]
        return registry.adapter_for(framework).make_capturable(region)

    @once_per_trace
    def _dtype_around(self) -> str | None:
        innermost = innermost_region()
        if innermost is not None and innermost.covers(self.framework, None):
            around: Policy | None = innermost.policy
        else:
            around = current_policy(self.framework)
        return around.dtype if around is not None and around.active else None


@lru_cache(maxsize=1024)
def layer_region(rule: Policy | str, framework: str, result: str | None) -> LayerRegion:
    """Return the region for a rule, the same object each time.

    A compiler then finds again what it made for that object.
    """
    return LayerRegion(rule, framework, result)
