"""The state of a decorated optimizer hides no change of a parameter between steps."""

import numpy as np
import paddle
import pytest

import unamp


def set_a_number(parameter):
    changed = numbers(parameter)
    changed[3, 4] = 0.25
    parameter.set_value(paddle.to_tensor(changed).astype(parameter.dtype))


def take_other_memory(parameter):
    other = paddle.linspace(-1, 1, 2560).reshape(parameter.shape).astype(parameter.dtype)
    parameter.get_tensor()._share_data_with(other.get_tensor())


def clip_in_place(parameter):
    with paddle.no_grad():
        paddle.assign(
            parameter.astype("float32").clip(-0.1, 0.1).astype(parameter.dtype), output=parameter
        )


def lose_a_number(parameter):
    with paddle.no_grad():
        paddle.assign(paddle.full_like(parameter, float("nan")), output=parameter)


def numbers(tensor):
    return tensor.astype("float32").numpy()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("change", [set_a_number, take_other_memory, clip_in_place, lose_a_number])
def test_master_weights_follow_every_change(change, dtype):
    network = paddle.nn.Linear(64, 40)
    optimizer = paddle.optimizer.SGD(0.0, parameters=network.parameters())
    unamp.decorate(network, optimizer, "O2", dtype)
    weight = network.weight

    def step():
        for parameter in network.parameters():
            parameter.astype("float32").sum().backward()
        optimizer.step()
        optimizer.clear_grad()
        return optimizer._master_weights[weight.name].numpy().copy()

    before, rounded = step(), numbers(weight)
    change(weight)
    low = numbers(weight)
    assert not np.array_equal(low, rounded)
    for _ in range(2):
        place = weight.data_ptr()
        assert np.array_equal(step(), np.where(low == rounded, before, low), equal_nan=True)
        assert np.array_equal(numbers(weight), low, equal_nan=True)
        assert weight.data_ptr() == place
