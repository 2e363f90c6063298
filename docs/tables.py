"""Write the tables in docs/tables from the data and the adapters.

`make tables` runs it. With `--check` it writes nothing, and prints the stale tables; a test runs
that. Each adapter is asked for its abilities in a process of its own, because two frameworks in one
process disturb each other.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from unamp_conformance.gaps import KnownGap, gaps_of

from unamp import PRESETS, Policy, vocabulary
from unamp.adapter import DEVICES
from unamp.adapter.registry import adapter_for
from unamp.adapter.tensor_kinds import TREATMENTS
from unamp.dtypes import LOW_DTYPES
from unamp.presets import preset
from unamp.vocabulary import FRAMEWORKS

HERE = Path(__file__).parent / "tables"
MUTANTS = Path(__file__).parents[1] / "conformance" / "results" / "mutants.json"
COVERED = ("torch", "paddle", "mindspore", "tensorflow", "jax")
_SPELLED = (*FRAMEWORKS, "jax")  # jax brings its own spellings
DTYPES = LOW_DTYPES
_SHOWN = 6  # operations of a gap; the file of gaps has all


def main(arguments: Sequence[str]) -> int:
    """Write the tables, or check them; return the exit status."""
    stale = []
    for name, text in tables().items():
        file = HERE / name
        if file.exists() and file.read_text("utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            file.write_text(text, "utf-8")
    print(
        "\n".join(
            f"{'stale' if '--check' in arguments else 'written'}: docs/tables/{name}"
            for name in stale
        )
    )
    return int(bool(stale) and "--check" in arguments)


def tables() -> dict[str, str]:
    """Return the text of every table, by its file's name."""
    with ThreadPoolExecutor(2) as pool:
        asked = dict(zip(COVERED, pool.map(_ask, COVERED), strict=True))
    return {
        "vocabulary.md": _vocabulary(),
        "presets.md": _presets(),
        "capabilities.md": _capabilities(asked),
        "gaps.md": _gaps(asked),
        "tensor_kinds.md": _tensor_kinds(asked),
        "mutants.md": _mutants(json.loads(MUTANTS.read_text("utf-8"))),
    }


def _vocabulary() -> str:
    rows = [
        [
            f"`{op.name}`",
            op.group,
            *(_code(op.spellings.get(framework, ())[:2]) for framework in _SPELLED),
        ]
        for op in vocabulary().values()
    ]
    return _page(
        "Vocabulary",
        f"{len(rows)} operations, with their first two spellings in each framework. "
        "`unamp ops NAME` shows all of one.",
        _table(["operation", "group", *_SPELLED], rows),
    )


def _presets() -> str:
    names = [name for name in PRESETS if not preset(name).delegates]
    policies = [Policy("O1", preset=name) for name in names]
    plain = {op: [policy.decide(op).value for policy in policies] for op in vocabulary()}
    usual = Counter(map(tuple, plain.values())).most_common(1)[0][0]
    rows = [
        [f"`{op}`", *(_mark(rule) for rule in rules)]
        for op, rules in plain.items()
        if tuple(rules) != usual
    ]
    return _page(
        "Presets",
        "The rule of every operation in float16 at O1: **LOW**, FP32, BANNED, `·` for the widest "
        f"dtype of the inputs, empty where nothing is cast. The {len(plain) - len(rows)} "
        "operations that are `·` everywhere are left out. `unamp diff PRESET PRESET` shows what "
        "differs between two.",
        _table(["operation", *names], rows),
        "The lists were read from:\n\n"
        + _table(
            ["preset", "version", "source"],
            [
                [f"`{name}`", preset(name).version, "<br>".join(preset(name).source)]
                for name in names
            ],
        ),
    )


def _mark(rule: str) -> str:
    return {"LOW": "**LOW**", "WIDEST": "·", "UNTOUCHED": ""}.get(rule, rule)


def _capabilities(asked: dict[str, Any]) -> str:
    places = [(framework, device) for framework in COVERED for device in DEVICES]
    counts = [
        [
            framework,
            asked[framework]["version"],
            device,
            dtype,
            *_counted(asked[framework]["how"][device][dtype].values()),
        ]
        for framework, device in places
        for dtype in DTYPES
    ]
    rows = [
        [f"`{op}`", *(_how(asked[framework]["how"]["cpu"], op) for framework in COVERED)]
        for op in vocabulary()
        if any(asked[framework]["how"]["cpu"]["float16"][op] != "absent" for framework in COVERED)
    ]
    return _page(
        "Capabilities",
        "How an adapter makes an operation run low when a policy allows it. *native*: the "
        "framework's own autocast does it. *intercepted*: casts around the framework's kernel. "
        "*emulated*: there is no low kernel, so inputs are rounded to low, the operation is "
        "computed in float32, and its result is rounded. *absent*: the framework has no such "
        "operation.\n\n"
        "The empty cells of JAX: nothing in JAX, flax, optax and equinox goes by that name, or "
        "what does is another operation here (`jnp.dot` is `matmul`, `jnp.max` is `amax`, "
        "`jnp.repeat` is `repeat_interleave`), or is made of others and follows their rules "
        "(`optax.losses.dice_loss`; weight and spectral norm; `RNN`, which runs any cell).\n\n"
        "The lines for a GPU are what the adapters would do; they were written on a machine "
        "without one. `unamp doctor` and `unamp explain --framework NAME` say it for yours.",
        _table(["framework", "version", "device", "dtype", *_HOW], counts),
        "On the CPU, operation by operation:\n\n" + _table(["operation", *COVERED], rows),
    )


_HOW = ("native", "intercepted", "emulated", "absent")


def _counted(carried_out: Iterable[str]) -> list[str]:
    counts = Counter(carried_out)
    return [str(counts[how]) for how in _HOW]


def _how(by_dtype: dict[str, dict[str, str]], op: str) -> str:
    first, second = (by_dtype[dtype][op] for dtype in DTYPES)
    shown = first if first == second else f"{first}; {DTYPES[1]}: {second}"
    return "" if shown == "absent" else shown


def _gaps(asked: dict[str, Any]) -> str:
    parts = []
    for framework in COVERED:
        rows = [[gap["what"], "", "", gap["reason"]] for gap in asked[framework]["gaps"]]
        rows += _expected(gaps_of(framework))
        parts.append(
            f"## {framework} {asked[framework]['version']}\n\n"
            + _table(["what", "check", "under", "why"], rows)
        )
    return _page(
        "Known gaps",
        "What does not hold, and why: first what no region can do, then what the conformance "
        "suite expects to fail. A gap that begins to hold makes the suite fail, so that this "
        "page stays true.",
        *parts,
    )


def _tensor_kinds(asked: dict[str, Any]) -> str:
    rows = [
        [
            framework,
            f"`{kind['name']}`",
            *(_code(_treated(kind, treatment)) for treatment in TREATMENTS),
            kind["reason"],
        ]
        for framework in COVERED
        for kind in asked[framework]["tensor kinds"]
    ]
    return _page(
        "Kinds of tensor",
        "What a policy comes to for tensors that are not one dense array, as the adapters say "
        "and the conformance suite checks (`unamp conformance --check tensors`). *followed*: the "
        "rule holds, as for dense tensors. *refused*: `NotExpressible` is raised before anything "
        "is computed. *left alone*: a region changes nothing.",
        _table(["framework", "kind", *TREATMENTS, "why"], rows)
        if rows
        else "No adapter lists one.",
    )


def _treated(kind: dict[str, Any], treatment: str) -> list[str]:
    return sorted(op for op, given in kind["treatments"].items() if given == treatment)


def _mutants(measured: dict[str, Any]) -> str:
    frameworks = [name for name in COVERED if name in measured]
    kinds = list(dict.fromkeys(kind for name in frameworks for kind in measured[name]["kinds"]))
    rows = [
        [kind, *(_share(measured[name]["verdicts"].get(kind)) for name in frameworks)]
        for kind in kinds
    ]
    whole = [[_share(_together(measured[name]["verdicts"].values())) for name in frameworks]]
    about = [
        [
            name,
            found["version"].partition("+")[0],
            f"{len(found['measured'])} of {found['operations']}",
            str(found["seed"]),
        ]
        for name, found in measured.items()
    ]
    missed = [
        [name, f"`{op}`", kind, why]
        for name in frameworks
        for kind, counts in measured[name]["verdicts"].items()
        for op, why in counts["missed"].items()
    ]
    return _page(
        "Mutants",
        "How many adapters with one defect a thorough run of the suite notices, of how many. A "
        "mutant is the adapter with one operation that goes wrong in one kind of way; where it "
        "computes in another precision, its result has the right dtype. Those that give the "
        "adapter's own bits are none, and are left out. [Conformance](../conformance.md#mutants) "
        "says how it is measured.",
        _table(["kind", *frameworks], [*rows, ["**all**", *whole[0]]]),
        "Measured of the operations that a policy can change, drawn by a seed from all groups "
        "alike:\n\n" + _table(["framework", "version", "operations", "seed"], about),
        "What is not noticed:\n\n" + _table(["framework", "operation", "kind", "why"], missed),
    )


def _together(verdicts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    every = list(verdicts)
    missed = {
        (n, op): why for n, counts in enumerate(every) for op, why in counts["missed"].items()
    }
    return {"noticed": sum(counts["noticed"] for counts in every), "missed": missed}


def _share(counts: dict[str, Any] | None) -> str:
    if counts is None:
        return ""
    every = counts["noticed"] + len(counts["missed"])
    return f"{counts['noticed']} of {every}" if every else ""


def _expected(gaps: Iterable[KnownGap]) -> list[list[str]]:
    """Return a row for each reason, with the operations that have it.

    Several kinds of checks often find the same fault.
    """
    checks: dict[tuple[str, ...], list[str]] = {}
    for gap in gaps:
        where = [f"{name} = {json.dumps(value)}" for name, value in gap.where.items()]
        why = gap.reason + (f" (only where {_code(where)})" if where else "")
        checks.setdefault((_some(gap.subjects), _some(gap.policies), why), []).append(gap.check)
    return [
        [subjects, ", ".join(dict.fromkeys(found)), *rest]
        for (subjects, *rest), found in checks.items()
    ]


def _some(names: Sequence[str]) -> str:
    shown = _code(names[:_SHOWN]) if tuple(names) != ("*",) else "all"
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _code(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _page(title: str, about: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", about, *parts)) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _ask(framework: str) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, __file__, "--ask", framework], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise SystemExit(f"{framework} could not be asked:\n{ran.stderr}")
    # frameworks print greetings on standard output: the answer is the last line
    answer: dict[str, Any] = json.loads(ran.stdout.strip().rpartition("\n")[2])
    return answer


def _answer(framework: str) -> dict[str, Any]:
    importlib.import_module(framework)
    adapter = adapter_for(framework)
    # a cast can be on no list, and runs in the same way under any policy
    allow = [op.name for op in vocabulary().values() if not op.is_cast]
    policies = [Policy("O1", dtype, allow=allow) for dtype in DTYPES]
    return {
        "version": adapter.version().partition("+")[0],
        "gaps": [gap._asdict() for gap in adapter.gaps()],
        "tensor kinds": [
            {"name": kind.name, "treatments": dict(kind.treatments), "reason": kind.reason}
            for kind in getattr(adapter.operations(), "tensor_kinds", tuple)()
        ],
        "how": {
            device: {
                policy.dtype: {op: adapter.how(op, policy, device).value for op in vocabulary()}
                for policy in policies
            }
            for device in DEVICES
        },
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        print(json.dumps(_answer(sys.argv[2])))
    else:
        sys.exit(main(sys.argv[1:]))
