"""Peak memory of training in `jax.jit` with optax; see `benchmarks.memory`.

A step donates the parameters that it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import optax
from unamp_jax import low_parameters, with_master_weights

from benchmarks import memory
from benchmarks.measure import Comparison
from benchmarks.memory import Meter, Size, Way

__all__ = ["comparisons", "meter", "prepare"]


def comparisons() -> Iterator[Comparison]:
    own = [
        Way(network, "jmp", "", dtype)
        for network in ("encoder", "wide")
        for dtype in ("bfloat16", "float16")
    ]
    return memory.comparisons("JAX", __name__, own if find_spec("jmp") else ())


def meter() -> Meter:
    device = jax.devices()[0]
    if device.platform == "cpu":
        return memory.resident()

    def told(what: str) -> int:
        return int((device.memory_stats() or {})[what])

    # JAX cannot reset the peak
    return Meter(lambda: told("bytes_in_use"), lambda: None, lambda: told("peak_bytes_in_use"))


def _weights(*shapes: tuple[int, int]) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [
        jax.random.normal(key, shape) / shape[0] ** 0.5
        for key, shape in zip(keys, shapes, strict=True)
    ]


def _normed(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def _encoder(parameters: Any, x: jax.Array) -> jax.Array:
    for query, key, value, out, up, down in zip(*[iter(parameters)] * 6, strict=True):
        h = _normed(x)
        q, k, v = (
            jnp.matmul(h, weight).reshape(*h.shape[:2], 4, -1) for weight in (query, key, value)
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        x = x + jnp.matmul(mixed.reshape(x.shape), out)
        x = x + jnp.matmul(jax.nn.gelu(jnp.matmul(_normed(x), up)), down)
    return x


def _wide(parameters: Any, x: jax.Array) -> jax.Array:
    for weight in parameters:
        x = jax.nn.relu(jnp.matmul(x, weight))
    return x


def _network(
    way: Way, size: Size
) -> tuple[Callable[[Any, jax.Array], jax.Array], list[jax.Array], jax.Array]:
    key = jax.random.key(1)
    if way.network == "encoder":
        shapes = [(size.width, size.width)] * 4 + [
            (size.width, 4 * size.width),
            (4 * size.width, size.width),
        ]
        return (
            _encoder,
            _weights(*shapes * size.layers),
            jax.random.normal(key, (size.sequences, size.length, size.width)),
        )
    return (
        _wide,
        _weights(*[(size.width, size.width)] * size.layers),
        jax.random.normal(key, (size.sequences, size.width)),
    )


def _by_jmp(forward: Callable[..., jax.Array], dtype: str) -> Callable[..., jax.Array]:
    import jmp

    policy = jmp.get_policy(f"params=float32,compute={dtype},output=float32")
    return lambda parameters, x: policy.cast_to_output(
        forward(*policy.cast_to_compute((parameters, x)))
    )


def _optimizer(way: Way) -> Any:
    plain = optax.sgd(1e-4) if way.network == "encoder" else optax.adam(1e-4)
    return with_master_weights(plain) if way.decorated and way.masters else plain


def prepare(way: Way, size: Size) -> Callable[[], None]:
    forward, parameters, x = _network(way, size)
    if way.by == "jmp":
        forward = _by_jmp(forward, way.dtype)
    optimizer = _optimizer(way)
    if way.decorated and not way.masters:
        parameters = low_parameters(parameters, way.dtype)
    state = optimizer.init(parameters)
    if way.decorated and way.masters:  # the optimizer then keeps the float32 ones as master weights
        parameters = low_parameters(parameters, way.dtype)

    def loss_of(parameters: Any, x: jax.Array) -> jax.Array:
        with way.region():
            y = forward(parameters, x)
        return jnp.mean(jnp.square(y.astype(jnp.float32)))

    @partial(jax.jit, donate_argnums=(0, 1))
    def compiled(parameters: Any, state: Any, x: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x)
        updates, state = optimizer.update(gradients, state, parameters)
        return loss, optax.apply_updates(parameters, updates), state

    kept = [parameters, state]
    del parameters, state

    def step() -> None:
        loss, *kept[:] = compiled(*kept, x)
        float(loss)

    return step
