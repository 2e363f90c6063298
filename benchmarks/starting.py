"""What it costs to import unamp, and what the first region of a process costs."""

from __future__ import annotations

from benchmarks.measure import Comparison
from benchmarks.processes import FreshInterpreter

__all__ = ["comparisons"]

_FRAMEWORKS = ("torch", "paddle", "mindspore", "tensorflow", "numpy")

_TIMED = """
import sys{imports}
from time import process_time
start = process_time()
{source}
print(process_time() - start)
{afterwards}
"""


def _timed(source: str, *, imports: str = "", afterwards: str = "") -> str:
    return _TIMED.format(source=source, imports=imports and f", {imports}", afterwards=afterwards)


def comparisons() -> list[Comparison]:
    nothing = f"assert not set(sys.modules) & {set(_FRAMEWORKS)}, 'unamp imports a framework'"
    region = "with {}: pass".format
    return [
        Comparison(
            "import, in a fresh interpreter",
            (
                FreshInterpreter("import json, logging, typing", _timed("import json, logging, typing")),
                FreshInterpreter("import unamp", _timed("import unamp", afterwards=nothing), at_most=0.030),
            ),
        ),
        Comparison(
            "the first region of a process",
            (
                FreshInterpreter("torch.autocast", _timed(region("torch.autocast('cpu', dtype=torch.bfloat16)"), imports="torch")),
                *(
                    FreshInterpreter(name, _timed(region(f"unamp.autocast('cpu', dtype='bfloat16'{more})"), imports="torch, unamp"))
                    for name, more in (
                        ("unamp, preset native", ", preset='native'"),
                        ("unamp", ""),
                        ("unamp, O2", ", level='O2'"),
                    )
                ),
            ),
        ),
    ]
