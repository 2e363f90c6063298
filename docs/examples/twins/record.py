"""Record a trace of one of the twins: two networks, each written in five frameworks.

The weights and the data are the same in each.

    python record.py torch transformer torch.json

The weights and the data are those of `unamp_conformance.check.networks`, drawn by NumPy. The names
of the layers are each framework's own.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from unamp_conformance.check.networks import NETWORKS

FRAMEWORKS = ("torch", "paddle", "mindspore", "keras", "flax")


def main(framework: str, name: str, file: str, dtype: str = "", keep: str = "") -> None:
    """Run a twin once and write its trace; in a region of a low dtype, where one is given."""
    network = NETWORKS[name]
    run = import_module(f"in_{framework}").build(name, network.parameters())
    x = network.inputs()["x"]

    import unamp  # after the framework: it watches those that are imported

    with unamp.trace(values=True, **({"keep": keep} if keep else {})) as trace:
        if dtype:
            with unamp.autocast(dtype=dtype):
                run(x)
        else:
            run(x)
    Path(file).write_text(trace.to_json(), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
