"""A new low precision needs only a row in the table.

A framework follows it, or refuses it by name; the others go on as before.
"""

from __future__ import annotations

import one_more_precision
import pytest
from elsewhere import python
from installed import place


@pytest.mark.parametrize("framework", one_more_precision.PRODUCTS)
def test_a_new_low_precision(framework: str) -> None:
    place(framework)
    known, new = python("-W", "ignore", one_more_precision.__file__, framework).splitlines()[-2:]
    name = one_more_precision.NEW
    assert known == "bfloat16 bfloat16"
    refused = (
        f"{name} {framework} does not compute in {name} here; it does in float16, bfloat16, float32"
    )
    assert new == (f"{name} {name}" if framework == "jax" else refused)
