"""Sparse matrices follow the rules for the dense arrays that they are made of, as the adapter says."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from unamp_jax.conformance.tensor_kinds import tensor_kinds

import unamp

CASES = [(kind, op) for kind in tensor_kinds() for op in kind.calls]


@pytest.mark.parametrize(("kind", "op"), CASES, ids=lambda each: getattr(each, "name", each))
def test_a_rule_for_a_sparse_matrix_is_followed(kind, op):
    call = kind.calls[op]
    plain = call(kind.make("float32"))
    assert kind.treatments[op] == "followed"
    with unamp.autocast(dtype="bfloat16", allow=[op]):
        low = call(kind.make("float32"))
    assert kind.dtype(low) == "bfloat16"
    assert not np.array_equal(kind.values(low), kind.values(plain))
    np.testing.assert_allclose(kind.values(low), kind.values(plain), rtol=2**-6, atol=2**-6)
    with unamp.autocast(dtype="bfloat16", deny=[op]):
        wide = call(kind.make("bfloat16"))
    assert kind.dtype(wide) == "float32"
    exact = call(kind.make("bfloat16").astype(jnp.float32)) if op != "matmul" and op != "mul" else None
    if exact is not None:
        np.testing.assert_array_equal(kind.values(wide), kind.values(exact))
