"""`keras.mixed_precision` for every framework.

A dtype policy belongs to a layer of Keras, and new layers get the global one. So:

- Where Keras is imported, policies are Keras' own, and the global policy is Keras'. It governs
  Keras' layers, and no others.
- Elsewhere a policy is a value without effect, and setting a mixed one globally raises: open a
  region instead, ``with unamp.autocast(level="O2", dtype="bfloat16"):``.
- `LossScaleOptimizer` around one of Keras' optimizers is Keras' own, so that ``compile`` and
  ``fit`` take it. Around an optimizer of PyTorch, PaddlePaddle or MindSpore it follows the same
  rules, on top of `unamp.GradScaler`.

Semantics: https://keras.io/api/mixed_precision/ (Keras 3.15)
"""

from unamp.dialects.keras._loss_scale import LossScaleOptimizer
from unamp.dialects.keras._policy import DTypePolicy, dtype_policy, set_dtype_policy

__all__ = [
    "DTypePolicy",
    "LossScaleOptimizer",
    "Policy",
    "dtype_policy",
    "global_policy",
    "set_dtype_policy",
    "set_global_policy",
]

Policy = DTypePolicy
global_policy = dtype_policy
set_global_policy = set_dtype_policy
