"""Write the files in `exported/`: small networks, in a region and in float32.

Other frameworks' exporters write the files:

    python tests/onnx/export.py tf2onnx|paddle2onnx|mindspore|jax2onnx

The `doc_string` of each file names the versions that made it. The exporter and its framework must
be installed; no test needs them.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import unamp

HOME = Path(__file__).parent / "exported"

#: The layer that the regions keep in float32, where the framework has layers.
WIDE = unamp.LayerRules({"wo": "float32"})


def by_tf2onnx() -> None:
    import tensorflow as tf
    import tf2onnx
    from keras import Input, Sequential, layers, utils

    utils.set_random_seed(0)

    def save(network: Any, shape: tuple[int, ...], target: Path) -> None:
        @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def called(x: Any) -> Any:
            return network(x)

        tf2onnx.convert.from_function(
            called, called.input_signature, opset=18, output_path=str(target)
        )

    def dense() -> Any:
        wi = layers.Dense(2, bias_initializer="ones", name="wi")
        block = Sequential([wi, layers.LayerNormalization(name="norm")], name="block")
        return Sequential(
            [Input((2,)), block, layers.Dense(2, name="wo"), layers.Softmax(name="soft")],
            name="net",
        )

    def conv() -> Any:
        return Sequential(
            [Input((2, 2, 1)), layers.Conv2D(1, 2, name="conv"), layers.ReLU(name="act")],
            name="net",
        )

    _write("tf2onnx", ("tf2onnx", "tensorflow-cpu", "keras"), "float16", dense, (1, 2), save)
    _write("tf2onnx", ("tf2onnx", "tensorflow-cpu", "keras"), "float16", conv, (1, 2, 2, 1), save)


def by_paddle2onnx() -> None:
    import paddle
    from paddle import nn

    paddle.seed(0)

    class Dense(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(("wi", nn.Linear(2, 2)), ("norm", nn.LayerNorm(2)))
            self.wo = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return nn.functional.softmax(self.wo(self.block(x)))

    def conv() -> Any:
        return nn.Sequential(("conv", nn.Conv2D(1, 1, 2)), ("act", nn.ReLU()))

    def save(network: Any, shape: tuple[int, ...], target: Path) -> None:
        network.eval()
        spec = paddle.static.InputSpec(shape, "float32", "x")
        paddle.onnx.export(
            network, str(target.with_suffix("")), input_spec=[spec], opset_version=17
        )

    _write("paddle2onnx", ("paddle2onnx", "paddlepaddle"), "bfloat16", Dense, (1, 2), save)
    _write("paddle2onnx", ("paddle2onnx", "paddlepaddle"), "bfloat16", conv, (1, 1, 2, 2), save)


def by_mindspore() -> None:
    import mindspore
    from mindspore import nn, ops

    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_seed(0)

    class Block(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.wi = nn.Dense(2, 2)
            self.soft = nn.Softmax()

        def construct(self, x: Any) -> Any:
            return self.soft(self.wi(x))

    class Dense(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()
            self.wo = nn.Dense(2, 2)

        def construct(self, x: Any) -> Any:
            return self.wo(self.block(x))

    class Conv(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 2)

        def construct(self, x: Any) -> Any:
            return ops.relu(self.conv(x))

    def save(network: Any, shape: tuple[int, ...], target: Path) -> None:
        network.set_train(False)
        x = mindspore.Tensor(np.ones(shape, np.float32))
        mindspore.onnx.export(network, x, file_name=str(target))

    _write("mindspore", ("mindspore",), "float16", Dense, (1, 2), save)
    _write("mindspore", ("mindspore",), "float16", Conv, (1, 1, 2, 2), save)


def by_jax2onnx() -> None:
    import jax
    import jax.numpy as jnp
    from jax2onnx import to_onnx

    def dense(x: Any) -> Any:
        return jax.nn.softmax(jax.nn.relu(x @ jnp.ones((2, 2)) + jnp.ones(2)) @ jnp.ones((2, 2)))

    def conv(x: Any) -> Any:
        return jax.nn.relu(jax.lax.conv_general_dilated(x, jnp.ones((1, 1, 2, 2)), (1, 1), "SAME"))

    def save(network: Any, shape: tuple[int, ...], target: Path) -> None:
        target.write_bytes(
            to_onnx(network, [shape], model_name="net", return_mode="proto").SerializeToString()
        )

    _write("jax2onnx", ("jax2onnx", "jax"), "float16", lambda: dense, (1, 2), save, name="dense")
    _write(
        "jax2onnx", ("jax2onnx", "jax"), "float16", lambda: conv, (1, 1, 2, 2), save, name="conv"
    )


def _write(
    exporter: str,
    packages: tuple[str, ...],
    low: str,
    make: Callable[[], Any],
    shape: tuple[int, ...],
    save: Callable[[Any, tuple[int, ...], Path], None],
    name: str = "",
) -> None:
    """Write a network in a low region, with a rule for its layer `wo`, and in float32."""
    name = name or make.__name__.lower()
    for dtype in (low, "float32"):
        network = make()
        with _region(network, dtype), tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "model.onnx"
            save(network, shape, target)
            model = onnx.load(target)
        model.doc_string = ", ".join(
            f"{package} {importlib.metadata.version(package)}" for package in packages
        )
        (HOME / f"{exporter}-{name}-{dtype}.onnx").write_bytes(
            model.SerializeToString(deterministic=True)
        )


@contextlib.contextmanager
def _region(network: Any, dtype: str) -> Iterator[None]:
    if dtype == "float32":
        yield
        return
    if hasattr(network, "wo") or any(
        layer.name == "wo" for layer in getattr(network, "layers", ())
    ):
        unamp.layer_policies(network, WIDE)
    with unamp.autocast(dtype=dtype):
        yield


if __name__ == "__main__":
    HOME.mkdir(exist_ok=True)
    {
        "tf2onnx": by_tf2onnx,
        "paddle2onnx": by_paddle2onnx,
        "mindspore": by_mindspore,
        "jax2onnx": by_jax2onnx,
    }[sys.argv[1]]()
