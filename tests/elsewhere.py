"""Programs that run in a process of their own."""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple


class Ended(NamedTuple):
    """The outcome of a program: its exit status, and its output."""

    code: int
    stdout: str
    stderr: str


def ended(*words: object, path: Path | None = None, **environment: str) -> Ended:
    """Run Python with arguments, and return the outcome.

    It can import from `path`, and `environment` is added to its variables.
    """
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | environment
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def python(*words: object, path: Path | None = None, code: int = 0, **environment: str) -> str:
    """Run Python like `ended`, check its exit status, and return its output."""
    done = ended(*words, path=path, **environment)
    assert done.code == code, done.stdout + done.stderr
    return done.stdout


_IN_TURN = """
import contextlib, io, json, runpy, sys

def ended(words):
    sys.argv = words if words[0] != "-m" else words[1:]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as complaints:
        try:
            (runpy.run_path if words[0] != "-m" else runpy.run_module)(sys.argv[0], run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return code, said.getvalue(), complaints.getvalue()

print("\\n" + json.dumps([ended(words) for words in json.loads(sys.argv[1])]))
"""  # noqa: E501


def in_turn(*commands: Sequence[object], path: Path | None = None) -> list[Ended]:
    """Run Python with the arguments of each command, one after another in one process.

    So the process imports a framework only once.
    """
    said = python(
        "-c", _IN_TURN, json.dumps([list(map(str, words)) for words in commands]), path=path
    )
    return [Ended(*each) for each in json.loads(said.splitlines()[-1])]


def forked(framework: str, program: str, *arguments: str, code: int = 0, **environment: str) -> str:
    """Run a program like `ended_fork`, check its exit status, and return its output."""
    done = ended_fork(framework, program, *arguments, **environment)
    assert done.code == code, done.stdout + done.stderr
    return done.stdout


def ended_fork(framework: str, program: str, *arguments: str, **environment: str) -> Ended:
    """Run a program in a process that has just imported a framework, and return the outcome.

    To import a framework takes longer than most programs: one process imports it, and is forked for
    each program.

    Args:
        framework: the framework to import.
        program: the source of the program.
        arguments: the program's arguments.
        environment: variables that are added after the import.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([framework])
    with tempfile.TemporaryDirectory() as folder:
        said = tuple(str(Path(folder, name)) for name in ("stdout", "stderr"))
        process = server.Process(
            target=_run, args=(framework, program, arguments, os.environ | environment, said)
        )
        process.start()
        process.join()
        stdout, stderr = (Path(path).read_text("utf-8") for path in said)
    assert process.exitcode is not None
    return Ended(process.exitcode, stdout, stderr)


def _run(
    framework: str,
    program: str,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    said: tuple[str, str],
) -> None:
    for stream, path in zip((sys.stdout, sys.stderr), said, strict=True):
        with open(path, "wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    assert framework in sys.modules, f"{framework} was not imported before"
    os.environ.update(environment)
    sys.argv[1:] = arguments
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(program, vars(main))
