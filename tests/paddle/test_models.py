"""Common models run low in a region: Paddle's own for images, and a decoder as paddlenlp's.

The decoder has regions of Paddle's own inside.
"""

import numpy as np
import paddle
import pytest
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional as F

import unamp
from unamp import Policy, policy_region

#: The smallest images that each model takes.
SIZES = {
    "densenet121": 32,
    "resnet18": 32,
    "mobilenet_v3_small": 64,
    "shufflenet_v2_x0_25": 32,
    "googlenet": 224,
}


def run(network, x, policy):
    """Return a model's first result, and the gradient of its first parameter."""
    with policy_region(policy):
        found = network(x)
    result = found[0] if isinstance(found, (tuple, list)) else found
    (result.astype("float32").sum() * 256.0).backward()
    gradient = network.parameters()[0].grad.clone()
    network.clear_gradients()
    return result, gradient


@pytest.mark.parametrize("name", SIZES)
def test_paddles_own_models_run_forward_and_backward(name):
    network = getattr(paddle.vision.models, name)(num_classes=10)
    x = paddle.rand([1 if name == "googlenet" else 2, 3, SIZES[name], SIZES[name]])
    for layer in network.sublayers():
        # Statistics of a few random numbers enlarge roundings. Without statistics MobileNet's
        # numbers vanish, for it was not trained.
        if name != "mobilenet_v3_small" or isinstance(layer, paddle.nn.Dropout):
            layer.eval()
    wide, _ = run(network, x, Policy(enabled=False))
    for policy, tolerance in ((Policy("O1", "float16"), 0.05), (Policy("O2", "bfloat16"), 0.4)):
        with unamp.trace() as trace:
            low, gradient = run(network, x, policy)
        computed = {record.op: record.compute for record in trace.records}
        assert (
            computed["conv2d"]
            == computed["linear"]
            == str(low.dtype).removeprefix("paddle.")
            == policy.dtype
        )
        assert gradient.dtype == paddle.float32
        assert bool(paddle.isfinite(gradient).all())
        assert float(gradient.abs().max()) > 0
        scale = float(wide.abs().max())
        np.testing.assert_allclose(
            low.astype("float32").numpy(), wide.numpy(), atol=tolerance * scale
        )


class RMSNorm(paddle.nn.Layer):
    """A norm that computes its squares in float32.

    It switches autocast off for them, as paddlenlp's norm does.
    """

    def __init__(self, size):
        super().__init__()
        self.weight = self.create_parameter(
            [size], default_initializer=paddle.nn.initializer.Constant(1.0)
        )

    def forward(self, x):
        with paddle.amp.auto_cast(False):
            x = x.astype("float32")
            x = paddle.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-12) * x
        if self.weight.dtype in (paddle.float16, paddle.bfloat16):
            x = x.astype(self.weight.dtype)
        return x * self.weight


class Rotary(paddle.nn.Layer):
    """Rotate by positions; in a low dtype, the angles would be off by whole turns."""

    def __init__(self, size):
        super().__init__()
        self.frequencies = 1.0 / (10000.0 ** (paddle.arange(0, size, 2, dtype="float32") / size))

    def forward(self, x):
        with paddle.amp.auto_cast(False):
            angles = paddle.outer(
                paddle.arange(1000, 1000 + x.shape[1], dtype="float32"), self.frequencies
            )
            angles = paddle.concat([angles, angles], -1)[None, :, None]
            cosine, sine = angles.cos(), angles.sin()
        first, second = x.chunk(2, -1)
        return x * cosine.astype(x.dtype) + paddle.concat([-second, first], -1) * sine.astype(
            x.dtype
        )


class Block(paddle.nn.Layer):
    """A decoder with one layer, which predicts tokens."""

    def __init__(self, size=16, heads=2, vocabulary=30):
        super().__init__()
        self.heads = heads
        self.embed = paddle.nn.Embedding(vocabulary, size)
        self.before, self.between, self.last = RMSNorm(size), RMSNorm(size), RMSNorm(size)
        self.q, self.k, self.v, self.o = (
            paddle.nn.Linear(size, size, bias_attr=False) for _ in range(4)
        )
        self.gate, self.up = (paddle.nn.Linear(size, 3 * size, bias_attr=False) for _ in range(2))
        self.down = paddle.nn.Linear(3 * size, size, bias_attr=False)
        self.rotary = Rotary(size // heads)
        self.head = paddle.nn.Linear(size, vocabulary, bias_attr=False)

    def attend(self, x):
        q, k, v = (
            layer(x).reshape([*x.shape[:2], self.heads, -1]) for layer in (self.q, self.k, self.v)
        )
        q, k, v = (each.transpose([0, 2, 1, 3]) for each in (self.rotary(q), self.rotary(k), v))
        scores = paddle.matmul(q, k, transpose_y=True) / q.shape[-1] ** 0.5
        mask = paddle.triu(paddle.full(scores.shape[-2:], -1e4, scores.dtype), 1)
        weights = F.softmax(scores + mask, -1, dtype="float32").astype(v.dtype)
        return self.o(paddle.matmul(weights, v).transpose([0, 2, 1, 3]).reshape(x.shape))

    def feed(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))

    def forward(self, tokens):
        x = self.embed(tokens) * 1e-4  # small, as activations before the first norm may be
        x = x + self.attend(self.before(x))
        x = x + self.feed(self.between(x))
        return self.head(self.last(x))


class Recomputed(Block):
    def feed(self, x):
        return recompute(super().feed, x)


@pytest.mark.parametrize(
    ("kind", "compiled", "level", "low"),
    [
        (Block, "eager", "O1", "float16"),
        (Block, "eager", "O2", "bfloat16"),
        (Recomputed, "eager", "O2", "float16"),
        (Block, "AST", "O2", "bfloat16"),
        (Recomputed, "AST", "O1", "float16"),
        (Block, "SOT", "O1", "float16"),
    ],
)
def test_a_decoder_that_switches_autocast_off_inside(kind, compiled, level, low):
    paddle.seed(1)
    network = kind()
    tokens = paddle.to_tensor(np.random.default_rng(0).integers(0, 30, (2, 6)))
    expected = network(tokens)
    F.cross_entropy(expected, tokens).backward()
    gradients = {name: p.grad.numpy() for name, p in network.named_parameters()}
    network.clear_gradients()
    forward = (
        network
        if compiled == "eager"
        else paddle.jit.to_static(network, full_graph=compiled == "AST")
    )
    with policy_region(Policy(level, low)):
        found = forward(tokens)
        loss = F.cross_entropy(found, tokens)
    loss.backward()
    assert found.dtype == getattr(paddle, low)
    tolerance = {"float16": 0.02, "bfloat16": 0.1}[low]
    np.testing.assert_allclose(
        found.astype("float32").numpy(),
        expected.numpy(),
        atol=tolerance * float(expected.abs().max()),
    )
    for name, parameter in network.named_parameters():
        assert parameter.grad.dtype == paddle.float32, name
        apart = np.linalg.norm(parameter.grad.numpy() - gradients[name]) / np.linalg.norm(
            gradients[name]
        )
        assert apart < 10 * tolerance, (name, apart)


@pytest.mark.parametrize("compiled", ["eager", "AST", "SOT"])
@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_a_low_mask_is_added_as_a_float32_one_is(low, compiled):
    layer = paddle.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    x = paddle.randn([2, 5, 8])
    mask = paddle.triu(paddle.full([5, 5], float("-inf")), 1)
    expected = layer(x, mask).numpy()
    forward = (
        layer if compiled == "eager" else paddle.jit.to_static(layer, full_graph=compiled == "AST")
    )
    for level in ("O1", "O2"):
        with policy_region(Policy(level, low)):
            found = forward(x, mask.astype(low)).astype("float32").numpy()
        np.testing.assert_allclose(found, expected, atol=0.1)


def _beam_search(output_dtype="float32"):
    cell, output = paddle.nn.GRUCell(8, 8), paddle.nn.Linear(8, 20)
    decoder = paddle.nn.BeamSearchDecoder(
        cell,
        0,
        1,
        3,
        embedding_fn=paddle.nn.Embedding(20, 8),
        output_fn=lambda states: output(states).astype(output_dtype),
    )
    return cell, decoder


@pytest.mark.parametrize(
    "policy", [Policy("O1", "float16"), Policy("O2", "float16"), Policy("O3", "bfloat16")], ids=str
)
def test_scores_of_a_beam_search_are_float32(policy):
    cell, decoder = _beam_search()

    def scores():
        inits = cell.get_initial_states(paddle.ones([2, 8]))
        return paddle.nn.dynamic_decode(decoder, inits=inits, max_step_num=6)[1].log_probs

    exact = scores()
    with policy_region(policy):
        found = scores()
    assert found.dtype == paddle.float32
    np.testing.assert_allclose(found.numpy(), exact.numpy(), rtol=0.02)


def test_where_a_region_is_switched_off_the_logits_of_a_beam_search_stay_low(low, monkeypatch):
    cell, decoder = _beam_search(low)
    found = []
    own = decoder._mask_probs
    monkeypatch.setattr(
        decoder, "_mask_probs", lambda *args: found.append(args[0].dtype) or own(*args)
    )
    with policy_region(Policy("O1", low)), policy_region(Policy(enabled=False)):
        inits = cell.get_initial_states(paddle.ones([2, 8]))
        paddle.nn.dynamic_decode(decoder, inits=inits, max_step_num=2)
    assert set(found) == {low}


@pytest.mark.parametrize("compiled", ["eager", "AST", "SOT"])
@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_a_query_that_may_look_at_nothing_has_the_mean_as_in_float32(low, compiled):
    layer = paddle.nn.MultiHeadAttention(8, 2)
    x, mask = paddle.randn([2, 5, 8]), paddle.tril(paddle.ones([5, 5]), -1).astype("bool")
    expected = layer(x, x, x, mask).numpy()
    forward = (
        layer if compiled == "eager" else paddle.jit.to_static(layer, full_graph=compiled == "AST")
    )
    for level in ("O1", "O2"):
        with policy_region(Policy(level, low)):
            found = forward(x, x, x, mask).astype("float32").numpy()
        np.testing.assert_allclose(found, expected, atol=0.05)
