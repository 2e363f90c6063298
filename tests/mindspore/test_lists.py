"""Every entry of MindSpore's official lists has its list's rule, under MindSpore's preset."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.train import amp

import unamp
from unamp import Policy, Rule
from unamp.adapter.registry import spelling_of


@pytest.mark.parametrize("entry", amp.AMP_WHITE_LIST, ids=lambda entry: entry.__name__)
def test_the_white_list_is_low_at_O1(entry):  # noqa: N802
    assert Policy("O1", preset="mindspore").decide(spelling_of(entry)) is Rule.LOW


@pytest.mark.parametrize("entry", amp.AMP_BLACK_LIST, ids=lambda entry: entry.__name__)
def test_the_black_list_is_float32_at_O2(entry):  # noqa: N802
    assert Policy("O2", preset="mindspore").decide(spelling_of(entry)) is Rule.FP32
    assert Policy("O3", preset="mindspore").decide(spelling_of(entry)) is Rule.LOW


def test_native_follows_mindspores_own_lists():
    x = Tensor(np.random.rand(4, 4).astype(np.float32))
    with unamp.autocast(preset="native", dtype="float16"):
        assert nn.Dense(4, 4)(x).dtype == mindspore.float16
        assert nn.Softmax()(x).dtype == mindspore.float32
