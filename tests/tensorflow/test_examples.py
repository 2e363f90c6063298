"""The examples of README.md and the guides that use TensorFlow run as pasted."""

import pytest
import tensorflow as tf
from documents import Example, examples
from followed import added, told


@pytest.mark.parametrize("example", examples("tensorflow", "keras"), ids=str)
def test_example(example: Example) -> None:
    example.run()


def test_there_are_examples() -> None:
    assert examples("tensorflow", "keras")


def test_the_architecture_follows_an_add() -> None:
    assert added(tf.ones([4])) == told("TensorFlow")
