"""Rewrite a file's calls, names and imports; the rest of the text stays unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import libcst as cst
from libcst.helpers import get_full_name_for_node

from unamp.migrate.calls import Written, with_arguments
from unamp.migrate.deciding import Outcome
from unamp.migrate.names import Binding, Import, Source, Use
from unamp.migrate.settling import Fate, Settled
from unamp.migrate.spellings import table

_DIALECTS = "unamp.dialects"


def rewritten(source: Source, settled: Settled) -> str:
    """Return the text of a file with its imports and uses as they were settled."""
    changes: dict[cst.CSTNode, Callable[[cst.CSTNode], cst.CSTNode]] = {}
    through: dict[str, list[Binding]] = {}
    for use, decision in settled.decisions.items():
        if decision.outcome is Outcome.PLAIN:
            _change_to_plain(use, decision.arguments, source, changes)
            through.setdefault("unamp", []).extend(use.bindings)
        elif use in settled.spelled_out:
            assert use.row is not None
            changes[use.node] = _named(f"{_DIALECTS}.{use.row.dialect}")
            through.setdefault(f"{_DIALECTS}.{use.row.dialect.partition('.')[0]}", []).extend(
                use.bindings
            )
    imports = _Imports(settled.fates)
    wanted = _wanted(source, through)
    statements = [binding.statement for bindings in through.values() for binding in bindings]
    anchor = _anchor(source, statements) if wanted else None
    edited = source.module.visit(
        _Rewriter(changes, imports, anchor, [_import(name) for name in wanted])
    )
    assert isinstance(edited, cst.Module)
    if wanted and anchor is None:
        edited = edited.with_changes(
            body=[*(cst.SimpleStatementLine([_import(name)]) for name in wanted), *edited.body]
        )
    return edited.with_changes(body=_filled(edited.body)).code


def becomes(use: Use, arguments: Sequence[Written] | None, source: Source) -> cst.CSTNode:
    """Return the expression in plain unamp that a use becomes."""
    assert use.row is not None
    assert use.row.form is not None
    call = source.nodes.call_of(use.node)
    if call is None or arguments is None:
        return cst.parse_expression(use.row.form.to)
    return with_arguments(call, use.row.form.to, arguments)


def _change_to_plain(
    use: Use,
    arguments: Sequence[Written] | None,
    source: Source,
    changes: dict[cst.CSTNode, Callable[..., cst.CSTNode]],
) -> None:
    assert use.row is not None
    assert use.row.form is not None
    to, call = use.row.form.to, source.nodes.call_of(use.node)
    if call is None or arguments is None:
        changes[use.node] = _named(to)
        return
    new = arguments
    changes[call] = lambda updated: with_arguments(updated, to, new)


def _named(path: str) -> Callable[[cst.CSTNode], cst.CSTNode]:
    def rename(updated: cst.CSTNode) -> cst.CSTNode:
        made = cst.parse_expression(path)
        if isinstance(updated, (cst.Name, cst.Attribute)):
            made = made.with_changes(lpar=updated.lpar, rpar=updated.rpar)
        return made

    return rename


class _Imports:
    """The new import statements of a file."""

    def __init__(self, fates: Mapping[Binding, Fate]) -> None:
        self._fates: dict[Import, dict[cst.ImportAlias, tuple[Binding, Fate]]] = {}
        for binding, fate in fates.items():
            self._fates.setdefault(binding.statement, {})[binding.alias] = binding, fate

    def changed(self, statement: Import) -> bool:
        """Return whether a statement changes."""
        return any(fate is not Fate.KEPT for _, fate in self._fates.get(statement, {}).values())

    def new(self, statement: Import) -> list[Import]:
        """Return the statements that replace an import: its rest, and the moved names by module."""
        found = self._fates[statement]
        assert not isinstance(statement.names, cst.ImportStar)
        kept = [alias for alias in statement.names if found[alias][1] is Fate.KEPT]
        moved: dict[str, list[tuple[str, cst.ImportAlias]]] = {}
        for alias in statement.names:
            binding, fate = found[alias]
            if fate is Fate.MOVED:
                home, _, name = f"{_DIALECTS}.{table().dialect_of(binding.imported)}".rpartition(
                    "."
                )
                key = home if isinstance(statement, cst.ImportFrom) else f"{home}.{name}"
                moved.setdefault(key, []).append((name, alias))
        whole = (
            len(moved) == 1 and not kept and len(next(iter(moved.values()))) == len(statement.names)
        )
        parts: list[Import] = [_only(statement, kept)] if kept else []
        return parts + [
            _moved(statement, home, names, whole=whole) for home, names in moved.items()
        ]


def _moved(
    statement: Import, home: str, names: Sequence[tuple[str, cst.ImportAlias]], *, whole: bool
) -> Import:
    """Return an import of the moved names; if all names moved, in the old statement's layout."""
    aliases = [alias.with_changes(name=_dotted(name)) for name, alias in names]
    aliases = [
        alias.with_changes(asname=cst.AsName(cst.Name(old.evaluated_name.rpartition(".")[2])))
        if new != get_full_name_for_node(old.name) and not old.asname
        else alias
        for alias, (new, old) in zip(aliases, names, strict=True)
    ]
    if isinstance(statement, cst.Import):
        aliases = [alias.with_changes(name=_dotted(home)) for alias in aliases]
        return _only(statement, aliases)
    changed = statement.with_changes(module=_dotted(home), relative=())
    if whole:
        return changed.with_changes(names=aliases)
    plain = [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in aliases]
    return cst.ImportFrom(module=_dotted(home), names=plain)


def _only(statement: Import, aliases: Sequence[cst.ImportAlias]) -> Import:
    """Return an import of some of a statement's names; one name per line stays so, if possible."""
    assert not isinstance(statement.names, cst.ImportStar)
    if len(aliases) == len(statement.names):
        return statement.with_changes(names=aliases)
    last = (
        statement.names[-1].comma
        if isinstance(statement, cst.ImportFrom) and statement.lpar
        else None
    )
    ended = last if isinstance(last, cst.Comma) else cst.MaybeSentinel.DEFAULT
    return statement.with_changes(names=[*aliases[:-1], aliases[-1].with_changes(comma=ended)])


def _dotted(name: str) -> cst.Name | cst.Attribute:
    made = cst.parse_expression(name)
    assert isinstance(made, (cst.Name, cst.Attribute))
    return made


class _Rewriter(cst.CSTTransformer):
    """Applies the changes to the tree."""

    def __init__(
        self,
        changes: Mapping[cst.CSTNode, Callable[[cst.CSTNode], cst.CSTNode]],
        imports: _Imports,
        anchor: cst.SimpleStatementLine | None,
        added: Sequence[cst.Import],
    ) -> None:
        super().__init__()
        self._changes, self._imports, self._anchor, self._added = changes, imports, anchor, added

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> object:  # type: ignore[override]
        """Return the node that replaces a node."""
        if change := self._changes.get(original_node):
            return change(updated_node)
        if isinstance(original_node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            return self._statements(original_node, updated_node)
        if isinstance(original_node, cst.IndentedBlock):
            assert isinstance(updated_node, cst.IndentedBlock)
            return updated_node.with_changes(body=_filled(updated_node.body))
        return updated_node

    def _statements(
        self, original: cst.SimpleStatementLine | cst.SimpleStatementSuite, updated: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.SimpleStatementLine]:
        assert isinstance(updated, (cst.SimpleStatementLine, cst.SimpleStatementSuite))
        added = self._added if original is self._anchor else ()
        pairs = list(zip(original.body, updated.body, strict=True))
        if not added and not any(self._changed(old) for old, _ in pairs):
            return updated
        body: list[cst.BaseSmallStatement] = []
        for old, new in pairs:
            body += self._imports.new(old) if self._changed(old) else [new]  # type: ignore[arg-type]
        if len(pairs) == 1 and isinstance(updated, cst.SimpleStatementLine):
            return _lines(updated, [*body, *added])
        body = body or [cst.Pass()]
        body[-1] = body[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
        line = updated.with_changes(body=body)
        if not added:
            return line
        assert isinstance(line, cst.SimpleStatementLine)
        before = [cst.SimpleStatementLine([each]) for each in added]
        before[0] = before[0].with_changes(leading_lines=line.leading_lines)
        return cst.FlattenSentinel([*before, line.with_changes(leading_lines=[])])

    def _changed(self, statement: cst.CSTNode) -> bool:
        return isinstance(statement, (cst.Import, cst.ImportFrom)) and self._imports.changed(
            statement
        )


def _lines(
    line: cst.SimpleStatementLine, new: Sequence[cst.BaseSmallStatement]
) -> cst.CSTNode | cst.FlattenSentinel[cst.SimpleStatementLine]:
    """Return a statement's line with new statements instead, one on each line."""
    if not new:
        return line.with_changes(body=[cst.Pass()], leading_lines=[*line.leading_lines, _GONE])
    if len(new) == 1:
        return line.with_changes(body=new)
    after = [cst.SimpleStatementLine([each]) for each in new[1:]]
    return cst.FlattenSentinel([line.with_changes(body=[new[0]]), *after])


#: Marks the line of an import that is gone, until `_filled` removes it.
_GONE = cst.EmptyLine(comment=cst.Comment("# unamp: gone"))


def _is_gone(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and bool(statement.leading_lines)
        and statement.leading_lines[-1] is _GONE
    )


def _filled(body: Iterable[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """Return a block without the imports that are gone; their comments go to the next statement."""
    kept: list[cst.BaseStatement] = []
    comments: list[cst.EmptyLine] = []
    gone: cst.SimpleStatementLine | None = None
    for statement in body:
        if _is_gone(statement):
            assert isinstance(statement, cst.SimpleStatementLine)
            gone = statement
            comments += [line for line in statement.leading_lines[:-1] if line.comment]
            continue
        if comments and hasattr(statement, "leading_lines"):
            statement = statement.with_changes(leading_lines=[*comments, *statement.leading_lines])
            comments = []
        kept.append(statement)
    if gone is not None and not kept:
        return [gone.with_changes(body=[cst.Pass()], leading_lines=gone.leading_lines[:-1])]
    return kept


def _wanted(source: Source, through: Mapping[str, list[Binding]]) -> list[str]:
    """Return the modules of unamp that the file still has to import."""
    there = {
        b.imported
        for b in source.bindings
        if b.bound == "unamp" and _line(b.statement, source) is not None
    }
    wanted = sorted(through)
    if len(wanted) > 1:  # `import unamp.dialects.torch` binds `unamp` as well
        wanted = [name for name in wanted if name != "unamp"]
    return [] if there and wanted == ["unamp"] else [name for name in wanted if name not in there]


def _line(statement: cst.CSTNode, source: Source) -> cst.SimpleStatementLine | None:
    """Return the top-level line of a small statement; None where it stands inside a block."""
    line = source.nodes.parents.get(statement)
    return (
        line
        if isinstance(line, cst.SimpleStatementLine)
        and source.nodes.parents.get(line) is source.module
        else None
    )


def _anchor(source: Source, statements: Sequence[Import]) -> cst.SimpleStatementLine | None:
    """Return the line where the imports of unamp are written.

    It is the first line of `statements`, else the last line of the file's first imports.
    """
    lines = {line for statement in statements if (line := _line(statement, source)) is not None}
    inside = any(_line(statement, source) is None for statement in statements)
    anchor: cst.SimpleStatementLine | None = None
    for index, statement in enumerate(source.module.body):
        if (
            isinstance(statement, cst.SimpleStatementLine)
            and statement in lines
            and not (inside and anchor)
        ):
            return statement
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        is_docstring = (
            index == 0 and isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString)
        )
        if not is_docstring and not isinstance(small, (cst.Import, cst.ImportFrom)):
            break
        assert isinstance(statement, cst.SimpleStatementLine)
        anchor = statement
    if inside or not lines:
        return anchor
    return next(each for each in source.module.body if each in lines)  # type: ignore[return-value]


def _import(name: str) -> cst.Import:
    return cst.Import([cst.ImportAlias(_dotted(name))])
