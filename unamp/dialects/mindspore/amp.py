"""`mindspore.amp` for every framework.

Differences from MindSpore's own:

- JAX's modules are values: there a network that is given is not changed, and the returned one alone
  is converted.
- The boost levels are MindSpore's alone.
- `DynamicLossScaler.adjust` returns whether the gradients were finite, where MindSpore's returns
  True in every case.
- `all_finite` takes bfloat16, and scalers and `build_train_network` work on the CPU in every mode
  of scaling.
- The scale is a Python number. `all_finite` and the loss scalers can be part of a compiled graph
  (`mindspore.jit`, GRAPH_MODE): then the graph holds the scale, and the scaler outside reads and
  sets it there.
- In GRAPH_MODE a train network takes its steps as in PyNative mode. It is a Cell, which
  `mindspore.train.Model` trains, but no part of a graph.

Semantics: https://www.mindspore.cn/docs/en/r2.7.0/api_python/mindspore.amp.html (MindSpore 2.10)
"""

from unamp.dialects.mindspore._networks import (
    auto_mixed_precision,
    custom_mixed_precision,
    get_black_list,
    get_white_list,
)
from unamp.dialects.mindspore._scalers import (
    DynamicLossScaleManager,
    DynamicLossScaler,
    FixedLossScaleManager,
    LossScaleManager,
    LossScaler,
    StaticLossScaler,
    all_finite,
)
from unamp.dialects.mindspore._training import build_train_network

__all__ = [
    "DynamicLossScaleManager",
    "DynamicLossScaler",
    "FixedLossScaleManager",
    "LossScaleManager",
    "LossScaler",
    "StaticLossScaler",
    "all_finite",
    "auto_mixed_precision",
    "build_train_network",
    "custom_mixed_precision",
    "get_black_list",
    "get_white_list",
]
