"""Packages of others under unamp: ``make clients``, ``make clients-sample``.

Each client in ``clients/clients.toml`` gets an environment of its own: the frameworks of the
running environment, and the client's packages, pinned. Its script in ``clients`` takes the same
training steps in float32, under unamp, and under the framework's own mixed precision. The results
are kept in ``conformance/results/clients.json``, and shown in ``docs/clients.md``.

Arguments choose clients: ``python conformance/clients.py timm deepxde-jax``. The others keep their
results. The sample is two packages of each framework. It checks only that each runs: it takes few
steps, runs two clients at a time, so that its times say nothing, and keeps no results.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rows import ROOT, Rows, cells, commit, keep, last_line, run

ENVIRONMENTS = ROOT / ".venv-clients"
SCRIPTS = ROOT / "clients"
RESULTS = ROOT / "conformance/results/clients.json"
PAGE = ROOT / "docs/clients.md"

_RUNNING = 1800  # seconds; a step is quick, but the machine may be busy

#: The largest relative difference of a first loss from float32's. It is chosen, not derived: it
#: shows a run that is broken.
MOST_DIFFERENCE = 2.0**-4

_HEAD = """# Clients

What `make clients` found: packages of others, with networks of theirs and random weights, \
that take the same training
steps in float32, under `unamp.autocast(dtype="bfloat16")`, \
and under mixed precision of their own or of their framework.
They know nothing of unamp.

*Products low* is the share of multiplications that a trace of a step saw in bfloat16. \
*Difference* is that of the first
loss from float32's, in parts of it. *Time* is the median of a step against float32's, \
on the processor of that run, which
may have had other work: where it multiplies no bfloat16, low steps are slower. \
A dash is where a framework has no mixed
precision of its own on a CPU, or a client is not run. Its row then says why.
numpyro runs its model three times in `init`, outside of the region and in float32; \
the steps after it are what is counted.
The table is generated; the clients are listed in [clients.toml](../clients/clients.toml), \
each with its script beside.

| framework | client | packages | result | products low | \
difference | their own | time | their own | at commit |
|---|---|---|---|---|---|---|---|---|---|
"""


class Client(NamedTuple):
    """A client: name, framework, packages, and a script with the variables that are set for it.

    A client that is known not to run has the reason as its `gap`, and no script.
    """

    name: str
    framework: str
    packages: tuple[str, ...]
    script: str
    variables: Mapping[str, str] = {}
    dependencies: bool = True
    sample: bool = False
    gap: str = ""


def listed() -> dict[str, Client]:
    """Return the clients of clients.toml."""
    data = tomllib.loads((SCRIPTS / "clients.toml").read_text("utf-8"))
    usual = {name: {"script": name.replace("-", "_")} | entry for name, entry in data.items()}
    return {
        name: Client(name, **{**entry, "packages": tuple(entry["packages"])})
        for name, entry in usual.items()
    }


def main(arguments: Sequence[str]) -> int:
    """Run the chosen clients, one at a time; return 1 where one fails.

    The page is written after each.
    """
    parser = argparse.ArgumentParser(description="Packages of others under unamp.")
    parser.add_argument(
        "chosen", nargs="*", metavar="CLIENT", help="everything, where none is named"
    )
    parser.add_argument(
        "--sample",
        action="store_true",
        help="two of each framework, two at a time; keeps no result",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the environments for the next run"
    )
    options = parser.parse_args(arguments)
    clients = listed()
    if unknown := set(options.chosen) - clients.keys():
        sys.exit(f"unknown client {min(unknown)!r}; valid: {', '.join(clients)}")
    names = options.chosen or [
        name for name, client in clients.items() if client.sample or not options.sample
    ]
    failed = 0
    for name, found, seconds in _examined(names, brief=options.sample, stays=options.keep):
        print(f"{name}: {found['result']}, {seconds:.0f} seconds", flush=True)
        if not options.sample:
            keep(RESULTS, PAGE, (clients[name].framework, name), found, page)
        failed += found["result"] not in ("runs", clients[name].gap)
    return int(failed > 0)


def _examined(
    names: Sequence[str], *, brief: bool, stays: bool
) -> Iterator[tuple[str, Rows, float]]:
    """Yield clients by name, each with its result and the seconds that it took."""
    clients = listed()

    def one(name: str) -> tuple[str, Rows, float]:
        start = time.perf_counter()
        found = examined(
            clients[name], stays=stays, variables={"CLIENT_STEPS": "1"} if brief else {}
        )
        return name, found, time.perf_counter() - start

    with ThreadPoolExecutor(2 if brief else 1) as pool:
        yield from pool.map(one, names)


def examined(client: Client, *, stays: bool = False, variables: Mapping[str, str] = {}) -> Rows:
    """Return the result of a client that runs in an environment of its own, with more variables."""
    home = ENVIRONMENTS / client.name
    row: Rows = {"packages": list(client.packages), "commit": commit()}
    if client.gap:
        return row | {"result": client.gap}
    try:
        if problem := _installed(client, home):
            return row | {"result": f"does not install: {problem}"}
        script = str(SCRIPTS / f"run_{client.script}.py")
        done = run(
            home / "bin/python",
            script,
            cwd=home,
            variables={**client.variables, **variables},
            timeout=_RUNNING,
        )
        if done.returncode:
            return row | {"result": f"does not run: {last_line(done.stderr)}"}
        found = json.loads(last_line(done.stdout))
        return row | {"result": judged(found), "found": found}
    finally:
        if not stays:
            shutil.rmtree(home, ignore_errors=True)


def _installed(client: Client, home: Path) -> str:
    """Install a client's packages over this environment's; return the error, empty without one."""
    if (done := home / "installed").exists() and done.read_text("utf-8") == repr(client):
        return ""
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(home)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        return last_line(made.stdout + made.stderr)
    ours = sysconfig.get_paths()["purelib"]
    theirs = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    Path(theirs, "frameworks.pth").write_text(f"import site; site.addsitedir({ours!r})\n", "utf-8")
    pins = (
        "--constraint",
        str(ROOT / "constraints.txt"),
        *(() if client.dependencies else ("--no-deps",)),
    )
    install = (
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *pins,
        *client.packages,
    )
    ran = run(home / "bin/python", *install, cwd=home)
    if ran.returncode:
        return last_line(ran.stderr)
    done.write_text(repr(client), "utf-8")
    return ""


def judged(found: Mapping[str, Any]) -> str:
    """Return the verdict on a client: that it runs as without unamp, or the first fault."""
    if error := found["float32"].get("error"):
        return f"fails in float32 too: {error}"
    for part in ("unamp", "decisions"):
        if error := found[part].get("error"):
            return f"fails under unamp: {error}"
    if not found["decisions"]["low"]:
        return "nothing is multiplied in a low dtype"
    away = found["unamp"]["difference"]
    if away is None or away > MOST_DIFFERENCE:
        return "its numbers are not finite" if away is None else f"it is {away:.1g} from float32"
    return "runs"


def page(known: Rows) -> str:
    """Return the text of the page."""
    lines = [
        _line(framework, name, row)
        for framework, rows in sorted(known.items())
        for name, row in sorted(rows.items())
    ]
    return _HEAD + "\n".join(lines) + "\n"


def _line(framework: str, name: str, row: Rows) -> str:
    found = row.get("found", {})
    low = found.get("decisions", {}).get("low")
    share = "-" if low is None else f"{low:.0%}"
    modes = [found.get(mode, {}) for mode in ("unamp", "native")]
    differences = [
        "-" if mode.get("difference") is None else f"{mode['difference']:.0e}" for mode in modes
    ]
    whole = found.get("float32", {}).get("seconds")
    times = [
        f"{mode['seconds'] / whole:.2f}" if whole and "seconds" in mode else "-" for mode in modes
    ]
    packages = ", ".join(row["packages"]).replace("==", " ")
    return cells(
        framework, name, packages, row["result"], share, *differences, *times, row["commit"]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
