"""Migrate the text of one file: find, decide, rewrite, and report the findings."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from unamp.migrate.deciding import Decision, Outcome, Target, decide, is_used
from unamp.migrate.exports import Exports
from unamp.migrate.findings import FileResult, Finding, Kind
from unamp.migrate.literals import shortened_code
from unamp.migrate.names import Source, Use, read_source
from unamp.migrate.regions import region_policies, region_words
from unamp.migrate.rewriting import becomes, rewritten
from unamp.migrate.screening import may_have_spellings
from unamp.migrate.settling import Fate, Settled, settle
from unamp.migrate.spellings import FRAMEWORKS, table
from unamp.migrate.watching import watched

_BOTH = (Outcome.PLAIN, Outcome.DIALECT)


def migrate_source(
    text: str,
    target: Target = Target.UNAMP,
    frameworks: Collection[str] = FRAMEWORKS,
    exports: Exports | None = None,
) -> FileResult:
    """Return the migrated text of a file, the findings in it, and the policies of its regions.

    Args:
        frameworks: the frameworks whose spellings are moved; see
            `unamp.migrate.spellings.FRAMEWORKS`.
        exports: the names that the file imports from its own project's modules.

    Raises:
        libcst.ParserSyntaxError: where the text is not Python.
        ValueError: where libcst does not return the text unchanged.
    """
    exports = exports or Exports()
    if not may_have_spellings(text, exports):
        return FileResult(text, [], [])
    hidden = _swap(text, "\x0c", _FORM_FEED)
    source = read_source(hidden, exports)
    if source.module.code != hidden:
        raise ValueError(
            "the parser does not give this file back to the letter; it is left as it is"
        )
    uses = [
        use
        for use in source.uses
        if table().framework_of(use.name) in frameworks and is_used(use, source)
    ]
    decisions = {use: decide(use, source, target) for use in uses if use.row is not None}
    settled = settle(source, decisions, target)
    changes = any(fate is not Fate.KEPT for fate in settled.fates.values())
    changes = changes or any(decision.outcome in _BOTH for decision in settled.decisions.values())
    new = rewritten(source, settled) if changes else hidden
    findings = [
        *_of_uses(settled, source, target),
        *_of_modules(uses, source),
        *_of_imports(settled, source),
    ]
    findings += _of_assumptions(settled, source)
    findings += watched(source, uses, frameworks)
    regions = region_policies(source, frameworks)
    if not findings and not regions:
        return FileResult(text, [], [])
    listed = sorted(dict.fromkeys(findings), key=lambda f: (f.line, f.column, f.kind.value))
    return FileResult(_swap(new, _FORM_FEED, "\x0c"), listed, regions)


def _of_uses(settled: Settled, source: Source, target: Target) -> Iterator[Finding]:
    noted: set[str] = set()
    if all(decision.outcome is Outcome.SAME for decision in settled.decisions.values()):
        why = "the dialect has the same class, so nothing is moved; layers take it as it is"
        hand = (
            "leave it, or give the layers rules with unamp.layer_policies, "
            "as in every other framework"
        )
        for use in settled.decisions:
            if source.nodes.call_of(use.node) is not None:
                yield _of_call(Kind.LOOK, use, source, why=why, hand=hand)
    for use, decision in settled.decisions.items():
        yield from _of_use(use, decision, source, target)
        note = _note_of(use, decision)
        if note and note not in noted:  # the same note once in a file is enough
            noted.add(note)
            yield _of_call(Kind.NOTE, use, source, why=note)


def _of_call(kind: Kind, use: Use, source: Source, **words: str) -> Finding:
    """Return a finding about a use; it shows the whole call, where the use is called."""
    said = shortened_code(source.nodes.call_of(use.node) or use.node)
    return source.finding(kind, use.node, use.row.framework if use.row else "", said=said, **words)


def _note_of(use: Use, decision: Decision) -> str:
    """Return the difference that the move of a use makes; empty where there is none."""
    form = use.row.form if use.row is not None else None
    if form is None:
        return ""
    plain = decision.outcome is Outcome.PLAIN and decision.arguments is not None
    noted = plain or (decision.outcome is Outcome.DIALECT and form.noted_in_dialect)
    return form.note if noted else ""


def _of_use(use: Use, decision: Decision, source: Source, target: Target) -> Iterator[Finding]:
    assert use.row is not None
    if decision.outcome is Outcome.STAYS:
        hand = (
            decision.hand.format(**region_words(use, source))
            if "{region}" in decision.hand
            else decision.hand
        )
        yield _of_call(Kind.BY_HAND, use, source, why=decision.why, hand=hand)
    elif decision.outcome is Outcome.DIALECT:
        yield _of_call(Kind.MOVED, use, source, becomes=f"unamp.dialects.{use.row.dialect}")
        if target is not Target.DIALECTS and decision.why:
            yield _of_call(
                Kind.NOTE, use, source, why=decision.why, hand="so the dialect stands in its place"
            )
    elif decision.outcome is Outcome.PLAIN:
        yield _of_call(
            Kind.MOVED,
            use,
            source,
            becomes=shortened_code(becomes(use, decision.arguments, source)),
        )


def _of_assumptions(settled: Settled, source: Source) -> Iterator[Finding]:
    """Yield a note for each framework that is imported from the project's own modules.

    Such modules do not show which framework it is: its usual name is trusted.
    """
    moved = (use for use, decision in settled.decisions.items() if decision.outcome in _BOTH)
    for binding in dict.fromkeys(
        binding for use in moved for binding in use.bindings if binding.assumed
    ):
        said, framework = shortened_code(binding.statement), table().framework_of(binding.imported)
        why = f"{binding.bound} is taken for {binding.imported} itself"
        yield source.finding(Kind.NOTE, binding.alias, framework, said=said, why=why)


def _of_modules(uses: list[Use], source: Source) -> Iterator[Finding]:
    """Yield the findings about modules used as values, and names in them that no table has."""
    for use in uses:
        if use.row is not None:
            continue
        if use.name in table().modules:
            why = "the module is used as a value, and what is taken from it is not seen"
            hand = "import what is used of it by name"
        else:
            why = "no table has this name"
            hand = "look what it does, and whether it is mixed precision"
        yield source.finding(
            Kind.LOOK, use.node, table().framework_of(use.name), why=why, hand=hand
        )


def _of_imports(settled: Settled, source: Source) -> Iterator[Finding]:
    """Yield the findings about imports that no expression uses, and about ``import *``."""
    for binding, fate in settled.fates.items():
        if source.accesses.get(binding, 0):
            continue
        row, framework = table().rows.get(binding.imported), table().framework_of(binding.imported)
        if fate is Fate.MOVED:
            dialect = f"unamp.dialects.{table().dialect_of(binding.imported)}"
            yield source.finding(Kind.MOVED, binding.alias, framework, becomes=dialect)
        elif (
            row is not None
            and not row.only_with
            and not row.only_with_string
            and binding.imported == row.name
        ):
            why = (
                "nothing in this file calls it: who takes it from here, "
                "or reads its name in a string, has the framework's own"
            )
            hand = "import it from unamp where it is used, or migrate with --to dialects"
            yield source.finding(
                Kind.BY_HAND, binding.alias, framework, why=row.why or why, hand=row.hand or hand
            )
    for statement in source.nodes.imports:
        if (
            isinstance(statement, cst.ImportFrom)
            and isinstance(statement.names, cst.ImportStar)
            and statement.module
        ):
            module = shortened_code(statement.module)
            if module in table().modules and not statement.relative:
                why = "which names come with * is not seen"
                hand = "import what is used by name, and migrate again"
                yield source.finding(
                    Kind.LOOK, statement, table().framework_of(module), why=why, hand=hand
                )


#: A placeholder for a form feed on its own line, which libcst's tree does not keep.
_FORM_FEED = "#\ue000form feed\ue000"


def _swap(text: str, old: str, new: str) -> str:
    """Return a text with a whole line replaced, whatever its line end is."""
    lines = text.split("\n") if old in text else [text]
    return "\n".join(new + line[len(old) :] if line.rstrip("\r") == old else line for line in lines)
