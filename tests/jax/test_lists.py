"""Lists accept JAX's words, functions and layer classes.

The vocabulary's primitives and functions of JAX exist.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax._src import core
from unamp_jax.spellings import PALLAS, libraries, library_of, named, primitives, spelled

import unamp
from unamp.vocabulary import vocabulary

#: The versions of JAX that first have these functions.
SINCE = {"scipy.special.erfcx": (0, 10, 1), "scipy.special.dawsn": (0, 10, 2)}


def test_spellings_lead_somewhere():
    assert set(libraries()) >= {"jax", "flax.linen", "flax.nnx", "optax", "equinox"}
    lost = [
        path
        for op, path in spelled()
        if "." in path and library_of(path) not in ("keras", PALLAS) and named(path) is None
    ]
    assert set(lost) == {path for path, version in SINCE.items() if jax.__version_info__ < version}


def test_primitives_exist():
    known = {name for module in (jax.lax, jax.lax.linalg) for name in dir(module)}
    made = {
        getattr(jax.lax, name).name
        for name in known
        if name.endswith("_p") and hasattr(jax.lax, name)
    }
    made |= {
        getattr(jax.lax.linalg, name).name
        for name in known
        if name.endswith("_p") and hasattr(jax.lax.linalg, name)
    }
    from jax._src.lax import lax as private

    made |= {value.name for value in vars(private).values() if isinstance(value, core.Primitive)}
    assert len(set(primitives()) & made) > 80


@pytest.mark.parametrize(
    ("word", "op"),
    [
        ("jnp.exp", "exp"), (jnp.exp, "exp"), ("jax.nn.softmax", "softmax"),
        (jax.nn.softmax, "softmax"), ("lax.exp", "exp"), ("nnx.Linear", "linear"),
        (nnx.Linear, "linear"), (optax.huber_loss, "huber_loss"),
        ("optax.huber_loss", "huber_loss"), ("flax.linen.Dense", "linear"),
        ("jax.dot_general", "matmul"), ("torch.exp", "exp"), ("eqx.nn.Linear", "linear"),
    ],
)  # fmt: skip
def test_words_of_jax_are_understood(word, op):
    assert unamp.Policy(deny=word).deny == frozenset({op}) or unamp.Policy(deny=word).deny == (op,)


def test_words_of_before_mean_what_they_meant():
    for framework in ("torch", "paddle", "mindspore", "tensorflow"):
        for word, op in list(vocabulary().spelled(framework).items())[::50]:
            assert vocabulary().resolve(f"{framework}.{word}") == op


def test_lists_reach_operators_functions_imported_before_and_layers(matrix):
    softmax = jax.nn.softmax
    with unamp.autocast(
        dtype="bfloat16", allow=[jax.nn.softmax, "group:norm"], deny=["matmul", nnx.Linear]
    ):
        assert softmax(matrix).dtype == jnp.bfloat16
        assert (matrix @ matrix).dtype == jnp.float32
        assert nnx.Linear(4, 2, rngs=nnx.Rngs(0))(matrix.astype(jnp.bfloat16)).dtype == jnp.float32
        assert nnx.LayerNorm(4, rngs=nnx.Rngs(0))(matrix).dtype == jnp.bfloat16
        assert (matrix + matrix.astype(jnp.bfloat16)).dtype == jnp.float32
        assert (matrix.astype(jnp.bfloat16) * 2.0).dtype == jnp.bfloat16
