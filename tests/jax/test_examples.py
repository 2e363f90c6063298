"""The examples of README.md and the guides that use JAX run as pasted."""

import jax.numpy as jnp
import pytest
from documents import Example, examples
from followed import added, passed, told

import unamp


@pytest.mark.parametrize("example", examples("jax"), ids=str)
def test_example(example: Example) -> None:
    example.run()


def test_there_are_examples() -> None:
    assert examples("jax")


def test_the_architecture_follows_an_add_that_is_traced_once() -> None:
    x = jnp.ones(4321)  # of a size that nothing was traced for
    with unamp.autocast(dtype="bfloat16", allow=["add"]):
        _ = jnp.ones(3) + jnp.ones(3)  # what is made with the first call in a region is made
        assert passed(lambda: x + x) == told("JAX")
    assert added(x) == []
