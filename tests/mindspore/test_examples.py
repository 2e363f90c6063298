"""The examples of README.md and the guides that use MindSpore run as pasted."""

import mindspore
import pytest
from documents import Example, examples
from followed import added, told


@pytest.mark.parametrize("example", examples("mindspore"), ids=str)
def test_example(example: Example) -> None:
    example.run()


def test_there_are_examples() -> None:
    assert examples("mindspore")


def test_the_architecture_follows_an_add() -> None:
    assert added(mindspore.ops.ones(4, mindspore.float32)) == told("MindSpore")
