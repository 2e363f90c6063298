"""A region in a low precision that is not yet in the table of precisions.

``python one_more_precision.py FRAMEWORK`` prints the dtypes in which a product computes under
bfloat16 and under the new precision, or the error that refuses it.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, spec_from_loader

NEW = "float8_e5m2"

_BEFORE = '        FloatFormat("bfloat16", 2, 8,'
_ROW = f'        FloatFormat("{NEW}", 1, 3, -14, 15, low=True),\n'

PRODUCTS = {
    "torch": "import torch; x = torch.ones(2, 2); product = lambda: torch.mm(x, x)",
    "paddle": "import paddle; x = paddle.ones([2, 2]); product = lambda: paddle.mm(x, x)",
    "mindspore": (
        "import mindspore; x = mindspore.ops.ones((2, 2)); "
        "product = lambda: mindspore.ops.matmul(x, x)"
    ),
    "tensorflow": "import tensorflow as tf; x = tf.ones((2, 2)); product = lambda: tf.matmul(x, x)",
    "jax": "import jax; x = jax.numpy.ones((2, 2)); product = lambda: x @ x",
}


class _WithOneMore(SourceFileLoader, MetaPathFinder):
    """Imports `unamp.dtypes` with one more row in its table."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name == self.name else None

    def get_data(self, path: str) -> bytes:
        source = super().get_data(path)
        changed = source.replace(_BEFORE.encode(), (_ROW + _BEFORE).encode())
        assert changed != source
        return changed

    def get_code(self, fullname: str) -> object:
        # without the cache: it has the code of the unchanged file
        return self.source_to_code(self.get_data(self.path), self.path)


def main(framework: str) -> None:
    found = find_spec("unamp.dtypes")  # imports `unamp`, with the table as it is
    assert found is not None
    assert found.origin is not None
    for name in [name for name in sys.modules if name.partition(".")[0] == "unamp"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _WithOneMore("unamp.dtypes", found.origin))
    unamp = importlib.import_module("unamp")
    assert NEW in unamp.dtypes.LOW_DTYPES

    told: dict[str, object] = {}
    exec(PRODUCTS[framework], told)
    for dtype in ("bfloat16", NEW):
        try:
            with unamp.autocast(dtype=dtype):
                print(dtype, unamp.dtypes.dtype_name(told["product"]().dtype))
        except unamp.NotExpressible as error:
            print(dtype, error)


if __name__ == "__main__":
    main(sys.argv[1])
