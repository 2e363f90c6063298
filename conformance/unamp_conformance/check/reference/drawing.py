"""Drawing the roundings of all networks in all precisions, on all cores."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from unamp.dtypes import FLOAT32, LOW_DTYPES
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.check.reference.bounds import Drawn, Reference
from unamp_conformance.machine import cores

__all__ = ["draw_all"]


def draw_all(seed: int) -> dict[str, dict[str, Drawn]]:
    """Return the draws of `Reference.draw` for every network and precision."""
    asked = [(network, precision, seed) for network in NETWORKS for precision in (FLOAT32, *LOW_DTYPES)]
    found: dict[str, dict[str, Drawn]] = {network: {} for network in NETWORKS}
    # Arrays are tiny, and every core has a process: further threads would only be in the way.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with ProcessPoolExecutor(cores(), multiprocessing.get_context("spawn")) as pool:
        for (network, precision, _), drawn in zip(asked, pool.map(_draw, asked), strict=True):
            found[network][precision] = drawn
    return found


def _draw(asked: tuple[str, str, int]) -> Drawn:
    network, precision, seed = asked
    return Reference(NETWORKS[network]).draw(precision, seed)
