"""State that Paddle's own code makes and changes inside a region stays float32.

These are parameters, averages, statistics, and metrics.
"""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.quantization.quanters import FakeQuanterWithAbsMaxObserver

from unamp import Policy, policy_region

F32 = paddle.float32
POLICIES = [Policy("O2", "float16"), Policy("O3", "bfloat16")]


def dtypes(layer):
    return {each.dtype for each in layer.state_dict().values()}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_layer_that_is_made_in_a_region_has_float32_parameters_and_buffers(policy):
    with policy_region(policy):
        layer = nn.Linear(4, 3, paddle.ParamAttr(initializer=nn.initializer.Orthogonal()))
        orthogonal = layer.weight.numpy()
        spectral = nn.utils.spectral_norm(nn.Linear(4, 3))
        weighted = nn.utils.weight_norm(nn.Linear(4, 3))
        for each in (layer, spectral, weighted):
            each(paddle.ones([2, 4]))
        plain = nn.utils.remove_weight_norm(weighted)
    assert dtypes(layer) == dtypes(spectral) == dtypes(plain) == {F32}
    np.testing.assert_allclose(orthogonal.T @ orthogonal, np.eye(3), atol=1e-6)
    spectral.eval()(paddle.ones([2, 4]))  # outside of the region, this met a low vector


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_features_of_sound_that_are_made_in_a_region_have_the_same_buffers(policy):
    def made():
        return paddle.audio.features.MFCC(sr=8000, n_mfcc=13, n_fft=256, n_mels=20).state_dict()

    outside = made()
    with policy_region(policy):
        inside = made()
    assert len(outside) == 3
    for name, buffer in outside.items():
        np.testing.assert_array_equal(inside[name].numpy(), buffer.numpy())


@pytest.mark.parametrize("policy", [*POLICIES, Policy("O1", "float16")], ids=str)
def test_silence_is_finite(policy):
    silence = paddle.zeros([1, 1000])
    layer = paddle.audio.features.LogMelSpectrogram(sr=8000, n_fft=256, n_mels=20)
    with policy_region(policy):
        found = layer(silence)
    assert found.dtype == F32
    np.testing.assert_array_equal(found.numpy(), layer(silence).numpy())


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_where_a_region_is_switched_off_a_low_spectrum_stays_low(policy):
    spectrum = paddle.rand([4, 10]).astype(policy.dtype)
    with policy_region(policy), policy_region(Policy(enabled=False)):
        found = paddle.audio.functional.power_to_db(spectrum)
    assert found.dtype == spectrum.dtype


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_numbers_that_paddle_reads_by_numpy_are_not_bits(policy, tmp_path):
    assign = nn.initializer.Assign
    with policy_region(policy):
        halves = paddle.matmul(paddle.full([1, 2], 0.5), paddle.eye(2))
        assert halves.dtype != F32
        first, second = halves[0, 0], halves[0, 1]
        made = [
            nn.Linear(1, 2, paddle.ParamAttr(initializer=assign(value))).weight
            for value in (halves, [[first, second]])
        ]
        made += [paddle.to_tensor([[first, second]])]
        made += [paddle.to_tensor(halves.tolist())]
        paddle.audio.save(str(tmp_path / "sound.wav"), halves, 8000)
    for each in made:
        assert each.dtype == F32
        np.testing.assert_array_equal(each.numpy(), np.full([1, 2], 0.5, "float32"))
    sound, _ = paddle.audio.load(str(tmp_path / "sound.wav"))
    np.testing.assert_allclose(sound.numpy(), np.full([1, 2], 0.5), atol=1e-4)


@pytest.mark.parametrize("policy", [*POLICIES, Policy("O1", "float16")], ids=str)
def test_a_copied_layer_trains_as_its_original(policy):
    layer = paddle.nn.BatchNorm1D(4)
    with policy_region(policy):
        copied = copy.deepcopy(layer)
    for own, other in zip(layer.parameters(), copied.parameters(), strict=True):
        assert other.stop_gradient is own.stop_gradient


@pytest.mark.parametrize("write", [paddle.Tensor.set_value, lambda to, x: to.copy_(x, True)])
def test_low_numbers_are_written_to_a_float32_parameter(write):
    parameter = paddle.create_parameter([2, 2], "float32")
    ones = paddle.ones([2, 2])
    with policy_region(Policy("O2", "bfloat16")):
        write(parameter, paddle.matmul(ones, ones))
    assert parameter.dtype == F32
    np.testing.assert_array_equal(parameter.numpy(), np.full([2, 2], 2.0))
    with pytest.raises((AssertionError, RuntimeError), match="data ?type|dtype"):
        write(parameter, ones.astype("bfloat16"))


@pytest.mark.parametrize("policy", [*POLICIES, Policy("O1", "float16")], ids=str)
@pytest.mark.parametrize("full_graph", [None, True, False], ids=["eager", "AST", "SOT"])
def test_what_is_assigned_takes_the_dtype_of_what_it_is_assigned_to(full_graph, policy):
    class Kept(nn.Layer):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", paddle.zeros([4]))

        def forward(self, x):
            paddle.assign(paddle.matmul(x, paddle.ones([4])), self.kept)
            return x + self.kept

    layer = Kept()
    call = layer if full_graph is None else paddle.jit.to_static(layer, full_graph=full_graph)
    with policy_region(policy):
        call(paddle.eye(4) * 3)
        unnamed = paddle.assign(paddle.matmul(paddle.eye(4), paddle.eye(4)))
    assert layer.kept.dtype == F32
    assert unnamed.dtype == getattr(paddle, policy.dtype)
    np.testing.assert_array_equal(layer.kept.numpy(), np.full(4, 3.0, "float32"))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("need_restore", [True, False])
def test_averaged_parameters_are_the_same_as_outside(need_restore, policy):
    def averaged(policy):
        layer = nn.Linear(2, 2)
        layer.weight.set_value(np.full([2, 2], 3000.0, "float32"))
        average = paddle.incubate.ModelAverage(
            0.15, parameters=layer.parameters(), min_average_window=2, max_average_window=99
        )
        with policy_region(policy):
            for n in range(30):  # the sum is infinite in float16
                layer.weight.set_value(np.full([2, 2], 3000.0 + n, "float32"))
                layer(paddle.ones([1, 2])).sum().backward()
                average.step()
            with average.apply(need_restore=need_restore):
                found = layer.weight.numpy()
                computed = layer(paddle.ones([1, 2])).dtype
        return found, layer.weight.numpy(), computed

    known, found = averaged(Policy(enabled=False)), averaged(policy)
    for one, other in zip(found[:2], known[:2], strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    assert found[2] == getattr(paddle, policy.dtype)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_parameters_that_become_pieces_of_a_vector_stay_float32(policy):
    layer = nn.Linear(4, 3)
    with policy_region(policy):
        vector = nn.utils.parameters_to_vector(layer.parameters())
        nn.utils.vector_to_parameters(vector * 1.0, layer.parameters())
    assert vector.dtype == F32
    assert dtypes(layer) == {F32}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_moving_averages_of_fake_quantization_stay_float32(policy):
    def quantized(policy):
        quanter = FakeQuanterWithAbsMaxObserver()
        layer = quanter._instance(nn.Linear(1, 1))
        with policy_region(policy):
            for n in range(20):
                result = layer(paddle.full([2], 1.0 + n))
        return layer, result

    (layer, result), (known, _) = quantized(policy), quantized(Policy(enabled=False))
    assert result.dtype == getattr(paddle, policy.dtype)
    for name, kept in layer.state_dict().items():
        assert kept.dtype == F32, name
    for found, exact in zip(layer.parameters(), known.parameters(), strict=True):
        np.testing.assert_array_equal(found.numpy(), exact.numpy())


@pytest.mark.parametrize("policy", [Policy("O1", "bfloat16"), Policy("O2", "float16")], ids=str)
@pytest.mark.parametrize("metric", ["Precision", "Recall", "Auc"])
def test_metrics_of_low_predictions(metric, policy):
    scores = np.linspace(0, 1, 64, dtype="float32").reshape(-1, 1)
    labels = np.arange(64).reshape(-1, 1) % 3 > 0

    def measured(predictions):
        counting = getattr(paddle.metric, metric)()
        counting.update(predictions, paddle.to_tensor(labels.astype("int64")))
        return counting.accumulate()

    with policy_region(policy):
        low = paddle.matmul(
            paddle.to_tensor(np.concatenate([1 - scores, scores], 1)), paddle.eye(2)
        )
        low = low if metric == "Auc" else low[:, 1:]
        assert low.dtype == getattr(paddle, policy.dtype)
        found = measured(low)
    assert found == measured(low.astype("float32"))
