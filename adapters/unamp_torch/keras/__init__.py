"""Keras where it computes with PyTorch; modules outside this folder import from here only.

=============  ===================================================================================
`patches`      patches of Keras while a region is open: layers, functions, variables
`calls`        one call of a layer or a function that is one operation of the vocabulary
`training`     gradients, low variables and master weights
=============  ===================================================================================

These functions can be called whether Keras is imported or not, and do not import it.
"""

from unamp_torch.keras.patches import all_patches, in_use, tracing_patches
from unamp_torch.keras.training import (
    KerasGradients,
    check,
    give_masters,
    is_layer,
    is_optimizer,
    lower,
    trained_parameters,
)

__all__ = [
    "KerasGradients",
    "all_patches",
    "check",
    "give_masters",
    "in_use",
    "is_layer",
    "is_optimizer",
    "lower",
    "tracing_patches",
    "trained_parameters",
]
