"""The examples of README.md and the guides that use TensorFlow run as pasted."""

import pytest
from documents import Example, examples


@pytest.mark.parametrize("example", examples("tensorflow", "keras"), ids=str)
def test_example(example: Example) -> None:
    example.run()


def test_there_are_examples() -> None:
    assert examples("tensorflow", "keras")
