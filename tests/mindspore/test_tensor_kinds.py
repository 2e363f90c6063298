"""Tensors that are not one dense array are treated as they are listed."""

import pytest
from unamp_mindspore.conformance.tensor_kinds import KINDS

import unamp

CASES = [(kind, op) for kind in KINDS for op in kind.calls]


@pytest.mark.parametrize(("kind", "op"), CASES, ids=[f"{kind.name} {op}" for kind, op in CASES])
def test_a_kind_is_treated_as_it_is_listed(kind, op):
    wide, low = kind.make("float32"), kind.make("bfloat16" if kind.treatments[op] == "followed" else "float16")
    call, followed = kind.calls[op], kind.treatments[op] == "followed"
    plain = kind.values(call(wide))
    with unamp.autocast(dtype="bfloat16", allow=[op]):
        found = call(wide)
    with unamp.autocast(dtype="bfloat16", deny=[op]):
        widened = call(low)
    assert kind.dtype(found) == ("bfloat16" if followed else "float32")
    assert (kind.values(found) != plain).any() == followed
    assert kind.dtype(widened) == ("float32" if followed else "float16")
