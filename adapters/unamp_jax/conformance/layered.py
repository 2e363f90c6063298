"""JAX's network with layers, of flax nnx, and the ways to run it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
from jax import export

from unamp.adapter.layered_networks import LayeredNetworks, Runner, eager
from unamp_jax.conformance.ways import NO_FLATBUFFERS, export_platform


@cache
def _classes() -> tuple[Any, Any]:
    from flax import nnx  # JAX is used without flax, too

    class Block(nnx.Module):  # type: ignore[misc] # flax has no types
        def __init__(self, weights: Sequence[Any]) -> None:
            self.first, self.second = (
                nnx.Linear(weight.shape[1], weight.shape[0], use_bias=False, rngs=nnx.Rngs(0))
                for weight in weights
            )
            self.first.kernel[...], self.second.kernel[...] = (weight.T for weight in weights)

        def __call__(self, x: Any) -> Any:
            return self.first(x), self.second(x)

    class Network(nnx.Module):  # type: ignore[misc]
        def __init__(self, weights: Sequence[Any]) -> None:
            self.block = Block(weights)

        def __call__(self, x: Any) -> Any:
            return self.block(x)

    return Block, Network


def _network(weights: Sequence[Any], device: str) -> Any:
    with jax.default_device(jax.devices(device)[0]):
        return _classes()[1](weights)


def _compiled(network: Any) -> Runner:
    return eager(jax.jit(lambda x: network(x)))


def _exported(network: Any) -> Runner:
    def run(region: Any, x: Any) -> Any:
        with region():
            program = export.export(jax.jit(lambda x: network(x)), platforms=[export_platform(x)])(
                x
            ).serialize()
        return export.deserialize(program).call(x)

    return run


def layered() -> LayeredNetworks:
    """Return the networks with layers, as conformance takes them."""
    return LayeredNetworks(
        _network, {"eager": eager, "compiled": _compiled, "exported": NO_FLATBUFFERS or _exported}
    )
