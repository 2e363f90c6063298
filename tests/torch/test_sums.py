"""Sums of low tensors, and draws from them: see `summed`."""

from summed import test_sums_do_not_saturate_and_draws_are_not_biased  # noqa: F401
