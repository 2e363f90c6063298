"""The examples of README.md and the guides that use PaddlePaddle run as pasted."""

import paddle
import pytest
from documents import Example, examples
from followed import added, told


@pytest.mark.parametrize("example", examples("paddle"), ids=str)
def test_example(example: Example) -> None:
    example.run()


def test_there_are_examples() -> None:
    assert examples("paddle")


def test_the_architecture_follows_an_add() -> None:
    assert added(paddle.ones([4])) == told("PaddlePaddle")
