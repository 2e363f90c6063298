"""Regions around operations keep the promises of the module `eager`."""

import torch  # noqa: F401
from eager import *  # noqa: F403
