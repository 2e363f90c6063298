"""Programs in a process of their own."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType


def python(folder: Path, *arguments: str, code: int = 0) -> str:
    """Run Python, which can import from a folder, and return what it prints; check its exit status."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


#: A process in which one framework was imported, and nothing else was done, forks into each that runs a program.
_SERVER = multiprocessing.get_context("forkserver")


def forked(framework: str, program: str, *arguments: str, code: int = 0, **environment: str) -> str:
    """Run a program in a process in which a framework was just imported; return what it prints; check its exit status.

    To import a framework takes longer than most programs: here it is imported once for all programs of a folder of tests.

    Args:
        framework: what is imported.
        program: its source, or where it stands.
        arguments: of its command line.
        code: the exit status that it should have.
        environment: what is added to it once the framework is imported.
    """
    _SERVER.set_forkserver_preload([framework])
    with tempfile.TemporaryDirectory() as folder:
        said = tuple(str(Path(folder, name)) for name in ("stdout", "stderr"))
        process = _SERVER.Process(target=_run, args=(framework, program, arguments, environment, said))
        process.start()
        process.join()
        stdout, stderr = (Path(path).read_text("utf-8") for path in said)
    assert process.exitcode == code, stdout + stderr
    return stdout


def _run(framework: str, program: str, arguments: tuple[str, ...], environment: dict[str, str], said: tuple[str, str]) -> None:
    for stream, path in zip((sys.stdout, sys.stderr), said, strict=True):
        with open(path, "wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    assert framework in sys.modules, f"{framework} was not imported before"
    os.environ.update(environment)
    sys.argv[1:] = arguments
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(program, vars(main))
