"""The examples of README.md and the guides that use JAX run as pasted."""

import pytest
from documents import Example, examples


@pytest.mark.parametrize("example", examples("jax"), ids=str)
def test_example(example: Example) -> None:
    example.run()


def test_there_are_examples() -> None:
    assert examples("jax")
