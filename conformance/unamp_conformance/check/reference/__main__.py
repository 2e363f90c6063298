"""Draw the roundings of every network in every precision, and keep how far they led.

``python -m unamp_conformance.check.reference`` writes ``data/bounds.json``, which the suite reads: two minutes of one core.
With another seed and another file it draws others, for `unamp_conformance.meta.tightness` to look at.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from unamp_conformance.check.reference.bounds import DRAWS, FILE, FIRST
from unamp_conformance.check.reference.drawing import draw_all

__all__ = ["main"]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m unamp_conformance.check.reference", description="Draw the bounds of networks."
    )
    parser.add_argument("--seed", type=int, default=0, help="of the roundings; 0 unless said")
    parser.add_argument("--output", type=Path, default=Path(str(FILE)), help="the file to write; the suite's unless said")
    asked = parser.parse_args()
    found = {"draws": DRAWS, "first": FIRST, "seed": asked.seed, "networks": draw_all(asked.seed)}
    asked.output.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
