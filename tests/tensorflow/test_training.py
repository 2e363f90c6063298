"""Training with loss scaling comes to the loss of float32 training: see `trained`."""

from trained import test_through_an_overflow_and_a_restart  # noqa: F401
