"""Regions around operations: see `eager`."""

import torch  # noqa: F401
from eager import *  # noqa: F403
