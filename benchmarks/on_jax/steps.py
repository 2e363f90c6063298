"""Training steps in `jax.jit`, against casts by hand and, where it is installed, jmp."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp

import unamp
from benchmarks.measure import Comparison, Sampler

__all__ = ["comparisons"]

Loss = Callable[[Any, jax.Array], jax.Array]
Cast = Callable[[Any], Any]


@dataclass
class Step:
    """A training step, timed by the processor time of all threads.

    XLA computes in threads of its own.
    """

    name: str
    loss: Loss
    parameters: Any
    x: jax.Array
    region: Callable[[], AbstractContextManager[Any]] = nullcontext
    goal: float | None = None
    at_most: float | None = None

    def sampler(self, seconds: float) -> Sampler:
        loss = self.loss

        def step(parameters: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            value, slopes = jax.value_and_grad(loss)(parameters, x)
            return value, jax.tree.map(
                lambda parameter, slope: parameter - 1e-4 * slope, parameters, slopes
            )

        self._step = jax.jit(step)
        for _ in range(3):  # the first one compiles
            self.sample()
        return self

    def sample(self) -> float:
        with self.region():
            began = time.process_time()
            jax.block_until_ready(self._step(self.parameters, self.x))
            return time.process_time() - began


def _weights(*shapes: tuple[int, int]) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [
        jax.random.normal(key, shape) / shape[0] ** 0.5
        for key, shape in zip(keys, shapes, strict=True)
    ]


def _as_it_is(tensor: Any) -> Any:
    return tensor


def _low(tensor: Any) -> Any:
    return tensor.astype(jnp.bfloat16)


def _mlp(low: Cast = _as_it_is) -> Loss:
    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        for n, weight in enumerate(parameters):
            x = jnp.matmul(low(x), low(weight))
            x = jax.nn.relu(x) if n < 3 else x
        return jnp.mean(x.astype(jnp.float32) ** 2)

    return loss


def _transformer(low: Cast = _as_it_is) -> Loss:
    def wide(tensor: Any) -> Any:
        return tensor.astype(jnp.float32)

    def normed(x: jax.Array) -> jax.Array:
        x = wide(x)
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        for query, key, value, out, up, down in zip(*[iter(parameters)] * 6, strict=True):
            h = normed(x)
            q, k, v = (
                jnp.matmul(low(h), low(weight)).reshape(*h.shape[:2], 4, -1)
                for weight in (query, key, value)
            )
            scores = wide(jnp.einsum("bqhd,bkhd->bhqk", q, k)) * q.shape[-1] ** -0.5
            mixed = jnp.einsum("bhqk,bkhd->bqhd", low(jax.nn.softmax(scores)), v)
            x = x + jnp.matmul(mixed.reshape(x.shape), low(out))
            h = jax.nn.relu(jnp.matmul(low(normed(x)), low(up)))
            x = x + jnp.matmul(h, low(down))
        return jnp.mean(wide(x) ** 2)

    return loss


def _by_jmp(loss: Loss) -> Loss:
    import jmp

    policy = jmp.get_policy("params=float32,compute=bfloat16,output=float32")

    def cast(parameters: Any, x: jax.Array) -> jax.Array:
        return loss(*policy.cast_to_compute((parameters, x)))

    return cast


def comparisons() -> Iterator[Comparison]:
    block = [(256, 256)] * 4 + [(256, 1024), (1024, 256)]
    region = unamp.autocast(dtype="bfloat16")
    for title, make, parameters, shape in (
        ("MLP", _mlp, _weights(*[(1024, 1024)] * 4), (256, 1024)),
        ("transformer", _transformer, _weights(*block * 2), (8, 64, 256)),
    ):
        given = parameters, jax.random.normal(jax.random.key(1), shape)
        yield Comparison(
            f"jax: {title}, a training step in jax.jit",
            (
                Step("astype by hand", make(_low), *given),
                *(
                    [Step("jmp, compute=bfloat16", _by_jmp(make()), *given)]
                    if find_spec("jmp")
                    else []
                ),
                Step("float32", make(), *given),
                Step("unamp", make(), *given, lambda: region, goal=1.02),
            ),
        )
