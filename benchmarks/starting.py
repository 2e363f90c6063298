"""The time to import unamp, and of the first region of a process."""

from __future__ import annotations

from benchmarks.measure import Comparison
from benchmarks.processes import FreshInterpreter

__all__ = ["first_region", "importing"]

_TIMED = """
import {imports}
from time import process_time
start = process_time()
{source}
print(process_time() - start)
{afterwards}
"""

_NO_FRAMEWORK = (
    "assert not {'torch', 'paddle', 'mindspore', 'tensorflow', 'jax', 'numpy'} "
    "& set(sys.modules), 'unamp imports a framework'"
)


def _timed(source: str, *, imports: str = "sys", afterwards: str = "") -> str:
    return _TIMED.format(source=source, imports=imports, afterwards=afterwards)


def importing() -> list[Comparison]:
    """Compare `import unamp` with modules of the standard library."""
    return [
        Comparison(
            "import, in a fresh interpreter",
            (
                FreshInterpreter(
                    "import json, logging, typing", _timed("import json, logging, typing")
                ),
                FreshInterpreter(
                    "import unamp", _timed("import unamp", afterwards=_NO_FRAMEWORK), at_most=0.030
                ),
            ),
        )
    ]


def first_region() -> list[Comparison]:
    """Compare the first region, which reads the policy's lists and registers its kernels."""
    sources = {
        "torch.autocast": "torch.autocast('cpu', dtype=torch.bfloat16)",
        "unamp, preset native": "unamp.autocast('cpu', dtype='bfloat16', preset='native')",
        "unamp": "unamp.autocast('cpu', dtype='bfloat16')",
        "unamp, O2": "unamp.autocast('cpu', dtype='bfloat16', level='O2')",
    }
    return [
        Comparison(
            "the first region of a process",
            tuple(
                FreshInterpreter(name, _timed(f"with {source}: pass", imports="torch, unamp"))
                for name, source in sources.items()
            ),
        )
    ]
