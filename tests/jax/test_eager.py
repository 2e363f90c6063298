"""Regions around operations: see `eager`."""

import jax  # noqa: F401
from eager import *  # noqa: F403
