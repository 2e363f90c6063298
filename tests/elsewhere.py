"""Programs in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path


def python(folder: Path, *arguments: str, code: int = 0) -> str:
    """Run Python, which can import from a folder, and return what it prints; check its exit status."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout
