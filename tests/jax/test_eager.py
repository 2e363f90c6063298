"""Regions around operations keep the promises of the module `eager`."""

import jax  # noqa: F401
from eager import *  # noqa: F403
