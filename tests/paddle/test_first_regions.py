"""The first region of a process, opened inside a function that Paddle compiles: our set-up must stay out of that."""

import subprocess
import sys
from pathlib import Path


def test_the_first_region_of_a_process_opened_in_a_compiled_function():
    done = subprocess.run((sys.executable, Path(__file__).with_name("first_regions.py")), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
