"""Draw random roundings of every network in every precision, on all cores, and save the errors.

``python -m unamp_conformance.check.draw_netbounds`` takes two minutes to write
``data/drawn_errors.json``, which the suite reads. With another seed and another file it draws
others, for `unamp_conformance.meta.tightness` to look at.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from unamp.dtypes import FLOAT32, LOW_DTYPES
from unamp_conformance.check.netbounds import DRAWS, FILE, FIRST, Drawn, Reference
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.machine import cores

__all__ = ["main"]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m unamp_conformance.check.draw_netbounds",
        description="Draw the bounds of networks.",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the roundings; 0 unless said")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(str(FILE)),
        help="the file to write; the suite's unless said",
    )
    asked = parser.parse_args()
    found = {"draws": DRAWS, "first": FIRST, "seed": asked.seed, "networks": _draw_all(asked.seed)}
    asked.output.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def _draw_all(seed: int) -> dict[str, dict[str, Drawn]]:
    """Return the draws of `Reference.draw` for every network and precision."""
    asked = [
        (network, precision, seed) for network in NETWORKS for precision in (FLOAT32, *LOW_DTYPES)
    ]
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


if __name__ == "__main__":
    main()
