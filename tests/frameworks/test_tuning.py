"""A file that was tuned in one framework holds in another.

There it is applied to the same network with the same weights, and to fresh batches.
"""

from __future__ import annotations

from pathlib import Path

from elsewhere import python

TESTS = Path(__file__).parents[1]

#: The network in a framework's own tests of `unamp.tune`.
RUN = """
import importlib.util, os, sys
os.environ["KERAS_BACKEND"] = "tensorflow"
home, framework, file = sys.argv[1:]
sys.path.insert(0, home)
import tuned
spec = importlib.util.spec_from_file_location("of", f"{home}/{framework}/test_tuning.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import unamp
OF = module.OF
"""
TUNE = """
network = OF.network(tuned.weights())
found = unamp.tune(lambda batch: network(*batch), network, OF.batches(3))
open(file, "w").write(found.to_toml())
"""
HOLD = """
assert tuned.beyond(OF, open(file).read()) == []
"""


def _run(code: str, framework: str, file: Path) -> None:
    python("-W", "ignore", "-c", RUN + code, TESTS, framework, file)


def test_what_torch_tuned_holds_in_keras(tmp_path: Path) -> None:
    file = tmp_path / "precision.toml"
    _run(TUNE, "torch", file)
    assert '[[layers]]\npattern = "big"' in file.read_text()
    _run(HOLD, "tensorflow", file)
