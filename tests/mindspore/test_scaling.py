"""The scaler works on MindSpore, where gradients are values."""

import math

import mindspore
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, amp, nn
from mindspore.experimental import optim

import unamp


@settings(deadline=None, max_examples=20)
@given(st.lists(st.booleans(), max_size=8), st.integers(1, 3))
def test_after_any_sequence_the_scale_is_the_references(overflows, growth_interval):
    scaler = unamp.GradScaler(1024.0, growth_interval=growth_interval)
    w = Parameter(Tensor(np.ones(3, "float32")), name="w")
    optimizer = nn.SGD([w], 0.125)
    scaler.scale(Tensor(np.float32(1.0)))
    scale, good, steps = 1024.0, 0, 0
    for overflow in overflows:
        gradient = Tensor(np.full(3, math.inf if overflow else scale * 0.25, "float32"))
        assert scaler.step(optimizer, gradients=(gradient,)) is not overflow
        scaler.update()
        good, steps = (0, steps) if overflow else (good + 1, steps + 1)
        scale = scale / 2 if overflow else scale
        if good == growth_interval:
            scale, good = scale * 2, 0
        assert scaler.get_scale() == scale
        np.testing.assert_allclose(w.asnumpy(), 1 - 0.03125 * steps, rtol=1e-6)
    assert scaler.skipped == sum(overflows)


def test_gradients_must_be_handed_over():
    w = Parameter(Tensor(np.ones(3, "float32")), name="w")
    scaler = unamp.GradScaler()
    scaler.scale(Tensor(np.float32(1.0)))
    with pytest.raises(TypeError, match="MindSpore's gradients are values: hand them over"):
        scaler.step(nn.SGD([w], 0.1))
    with pytest.raises(ValueError, match="there are float16 gradients"):
        scaler.step(nn.SGD([w], 0.1), gradients=[Tensor(np.ones(3, "float16"))])


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("kind", [nn.Adam, optim.AdamW, optim.RMSprop, optim.Adamax])
def test_no_policy_reaches_a_step(kind, scaled):
    def stepped(level):
        w = Parameter(Tensor(np.float32([1.0, -2.0])), name="w")
        optimizer, scaler = kind([w], 0.1), unamp.GradScaler()
        scaler.scale(Tensor(np.float32(1.0)))
        with unamp.autocast(level=level, dtype="float16"):
            for numbers in ([0.3, 0.7], [0.1, -0.9]):
                gradients = (Tensor(np.float32(numbers) * (scaler.get_scale() if scaled else 1)),)
                if scaled:
                    scaler.step(optimizer, gradients=gradients)
                    scaler.update()
                else:
                    optimizer(gradients)
        return w.asnumpy()

    assert np.array_equal(stepped("O3"), stepped("O0"))


def _called(scaler, loss, finite):
    scaled = scaler.scale(loss)
    unscaled = scaler.unscale((scaled,))[0]
    scaler.adjust(finite)
    return scaled, unscaled


def _in_a_graph(scaler, loss, finite):
    @mindspore.jit
    def step(loss, finite):
        scaled = scaler.scale(loss)
        unscaled = scaler.unscale((scaled,))[0]
        scaler.adjust(finite)
        return scaled, unscaled

    return step(loss, finite)


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("step", [_called, _in_a_graph])
@pytest.mark.parametrize("finite", [True, False])
def test_no_policy_reaches_a_scaler_of_mindspores_own(step, level, low, finite):
    scaler = amp.DynamicLossScaler(2.0**20, 2, 1)
    with unamp.autocast(level=level, dtype=low):
        scaled, unscaled = step(scaler, Tensor(np.float32(3.001)), Tensor(finite))
        fixed = amp.StaticLossScaler(2.0**20).scale(Tensor(np.float32(3.001)))
    # In float16 these would be infinite, and the scale would stay infinite.
    assert [each.dtype for each in (scaled, unscaled, fixed)] == [mindspore.float32] * 3
    assert scaled.asnumpy() == fixed.asnumpy() == np.float32(3.001) * 2.0**20
    assert unscaled.asnumpy() == np.float32(3.001)
    assert scaler.scale_value.asnumpy() == (2.0**21 if finite else 2.0**19)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_no_policy_reaches_the_cell_that_updates_a_loss_scale(level, low):
    update, scale = nn.DynamicLossScaleUpdateCell(2**20, 2, 1), Parameter(Tensor(2.0**20))
    with unamp.autocast(level=level, dtype=low):
        update(scale, Tensor(True))
    assert scale.asnumpy() == 2.0**19
