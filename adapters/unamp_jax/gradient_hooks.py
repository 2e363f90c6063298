"""Reports of the gradients of results to a trace, for `unamp.trace(gradients=True)`.

JAX has no hooks on arrays. Instead a primitive of our own follows the operation. It returns its
operand, in every transformation; its transpose, which is a step of the backward pass, reports the
cotangent and passes it on. Parameters are values of the caller's: the gradients that a pullback
returns for a pytree have the names of its leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core
from jax._src.interpreters import batching as transforming
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from unamp._function_types import Keywords
from unamp.adapter.gradient_hooks import GradientHook
from unamp_jax.state import CONTEXT, PyTree

#: Binds a primitive to one operand, with parameters.
Bind = Callable[[Primitive, jax.Array, Keywords], jax.Array]


class Later:
    """A reference to an operation's hook, known only once the operation has been reported.

    Attributes:
        hook: the hook; None where no trace wants gradients, too.
    """

    def __init__(self, result: int, hook: GradientHook | None = None) -> None:
        self.result = result
        self.hook = hook

    def take(self, cotangent: jax.Array) -> None:
        """Report a gradient, also one that a compiled program computes later."""
        hook = self.hook
        if hook is None or not hook.wanted:
            return
        if isinstance(cotangent, transforming.BatchTracer):
            hook.leave_out("inside of jax.vmap there is one for each of a batch", self.result)
        elif isinstance(cotangent, core.Tracer):
            with CONTEXT(None):
                jax.debug.callback(self._arrived, cotangent)
        else:
            self._arrived(cotangent)

    def _arrived(self, cotangent: jax.Array) -> None:
        numbers = np.asarray(cotangent)
        if self.hook is not None and self.hook.wanted:
            self.hook.arrived(
                str(numbers.dtype),
                numbers.shape,
                numbers.astype("float64").reshape(-1),
                self.result,
            )


def bind(primitive: Primitive, value: jax.Array, params: Keywords) -> jax.Array:
    """Bind a primitive under the transformations that are in force."""
    with CONTEXT(None):
        return primitive.bind(value, **params)


def followed(results: Sequence[jax.Array], through: Bind) -> tuple[list[jax.Array], list[Later]]:
    """Return an operation's floating results to go on with, and the takers of their gradients.

    A result outside of every transformation has no gradient, and stays as it is.
    """
    later = [Later(n) for n in range(len(results))]
    going_on = [
        through(_followed, result, {"later": each}) if isinstance(result, core.Tracer) else result
        for result, each in zip(results, later, strict=True)
    ]
    return going_on, later


def named_leaves(tree: PyTree) -> Iterator[tuple[str, jax.Array]]:
    """Yield the floating arrays of a pytree, None left out, by their paths, with dots."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            yield _name(path), leaf


def _name(path: jax.tree_util.KeyPath) -> str:
    parts = [
        str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path
    ]
    return ".".join(parts[:-1] if parts[-1:] == ["value"] else parts)


def _transpose(
    cotangent: jax.Array | ad.Zero, operand: object, *, later: Later
) -> list[jax.Array | ad.Zero]:
    if type(cotangent) is not ad.Zero:
        later.take(cotangent)
    return [cotangent]


_followed = Primitive("unamp_followed")
_followed.def_impl(lambda value, *, later: value)
_followed.def_abstract_eval(lambda value, *, later: value)
ad.deflinear2(_followed, _transpose)
batching.defvectorized(_followed)
mlir.register_lowering(_followed, lambda context, value, *, later: [value])
