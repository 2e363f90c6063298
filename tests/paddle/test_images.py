"""Transforms of images in a region give the same pixels as outside of it."""

import numpy as np
import paddle
import pytest
from paddle.vision.transforms import functional as transforms

from unamp import Policy, policy_region

CORNERS, MOVED = [[0, 0], [39, 0], [39, 39], [0, 39]], [[2, 1], [36, 3], [37, 38], [1, 35]]
TRANSFORMS = {
    "rotate": lambda image: transforms.rotate(image, 30.0),
    "affine": lambda image: transforms.affine(image, 20.0, (3, 2), 1.2, (5.0, 3.0)),
    "perspective": lambda image: transforms.perspective(image, CORNERS, MOVED, "bilinear"),
    "adjust_hue": lambda image: transforms.adjust_hue(image, 0.2),
}


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_an_image_that_is_turned_or_coloured_is_the_one_outside_of_the_region(name, level):
    image = paddle.rand([3, 40, 40])
    exact = TRANSFORMS[name](image)
    with policy_region(Policy(level, "bfloat16")):
        found = TRANSFORMS[name](image)
    assert found.dtype == paddle.float32
    assert paddle.equal_all(found, exact)


def test_whole_numbers_have_their_hue_changed_as_outside_of_the_region():
    image = (paddle.rand([3, 40, 40]) * 255).astype("uint8")
    exact = transforms.adjust_hue(image, 0.2)
    with policy_region(Policy("O1", "bfloat16")):
        found = transforms.adjust_hue(image, 0.2)
    np.testing.assert_array_equal(found.numpy(), exact.numpy())
