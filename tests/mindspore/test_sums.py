"""Sums of low tensors do not saturate, and draws from them are not biased; see `summed`."""

from summed import test_sums_do_not_saturate_and_draws_are_not_biased  # noqa: F401
