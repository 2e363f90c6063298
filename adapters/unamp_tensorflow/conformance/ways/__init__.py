"""The ways in which TensorFlow and Keras run a function; see `unamp.adapter.ways`."""

from unamp.adapter import Way
from unamp_tensorflow.conformance.ways import (
    control_flow,
    eager,
    gradients,
    graphs,
    models,
    replicated,
)

__all__ = ["ways"]


def ways() -> tuple[Way, ...]:
    """Return the ways of this version of TensorFlow."""
    return (
        *eager.WAYS,
        *graphs.ways(),
        *control_flow.ways(),
        *gradients.ways(),
        *replicated.ways(),
        *models.ways(),
    )
