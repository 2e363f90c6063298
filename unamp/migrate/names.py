"""Find the uses of a framework's names in a file, with libcst's scopes.

A name may come through imports, aliases and attributes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import (
    CodePosition,
    ImportAssignment,
    MetadataWrapper,
    PositionProvider,
    Scope,
    ScopeProvider,
)

from unamp._grouping import grouped
from unamp.migrate.exports import Exports
from unamp.migrate.findings import Finding, Kind
from unamp.migrate.literals import shortened_code
from unamp.migrate.spellings import Row, table

Import = cst.Import | cst.ImportFrom


@dataclass(frozen=True, eq=False, slots=True)
class Binding:
    """A name that an import binds."""

    statement: Import
    alias: cst.ImportAlias
    #: The dotted name of the imported module, or of a function in one.
    imported: str
    #: The name that is bound.
    bound: str
    #: Whether it comes from a module of the project's own.
    own: bool = False
    #: Whether that module's binding is not seen: the framework is assumed from its usual name.
    assumed: bool = False
    #: Whether that module binds the name in several ways.
    several: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Use:
    """One use of a framework's name.

    Attributes:
        node: the expression: a name, or the attributes after it, as far as `name` goes.
        name: the framework's dotted name for it.
        row: the table row; None for a module of mixed precision, or a name in one without a row.
        bindings: the imports that it comes through.
        several: whether the name may stand for something else, by another import or assignment.
        rest: the number of attributes after `node`.
    """

    node: cst.BaseExpression
    name: str
    row: Row | None
    bindings: tuple[Binding, ...]
    several: bool
    rest: int = 0


class Nodes(cst.CSTVisitor):
    """The nodes of a file, from one walk: every node's parent, and the nodes by their kind."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.calls: list[cst.Call] = []
        self.strings: list[cst.SimpleString] = []
        self.imports: list[Import] = []
        self.stored: list[cst.Attribute] = []
        #: Pairs of a name and a value: keywords of calls, entries of dictionaries, defaults, and
        #: assignments; each with its node.
        self.named: list[tuple[cst.CSTNode, str, cst.BaseExpression]] = []
        self._above: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Note a node and its parent."""
        if self._above:
            self.parents[node] = self._above[-1]
        self._above.append(node)
        if isinstance(node, cst.Call):
            self.calls.append(node)
        elif isinstance(node, cst.SimpleString):
            self.strings.append(node)
        elif isinstance(node, (cst.Import, cst.ImportFrom)):
            self.imports.append(node)
        elif isinstance(node, cst.AssignTarget) and isinstance(node.target, cst.Attribute):
            self.stored.append(node.target)
        if (named := _named(node)) is not None:
            self.named.append((node, *named))
        return not isinstance(
            node, (cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.EmptyLine)
        )

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Return to the parent node."""
        self._above.pop()

    def call_of(self, node: cst.CSTNode) -> cst.Call | None:
        """Return the call whose function is `node`, or None."""
        parent = self.parents.get(node)
        return parent if isinstance(parent, cst.Call) and parent.func is node else None

    def around(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes around a node, the innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent


def _named(node: cst.CSTNode) -> tuple[str, cst.BaseExpression] | None:
    match node:
        case (
            cst.Arg(keyword=cst.Name(value=name), value=value)
            | cst.AnnAssign(target=cst.Name(value=name), value=value)
        ):
            return (name, value) if value is not None else None
        case cst.Param(name=cst.Name(value=name), default=cst.BaseExpression() as value):
            return name, value
        case cst.Assign(
            targets=[
                cst.AssignTarget(
                    target=cst.Name(value=name) | cst.Attribute(attr=cst.Name(value=name))
                )
            ],
            value=value,
        ):
            return name, value
        case cst.DictElement(key=cst.SimpleString() as key, value=value):
            return str(key.evaluated_value), value
    return None


class Source(NamedTuple):
    """A parsed file: its tree, nodes, import bindings, and the uses of the frameworks' names."""

    module: cst.Module
    wrapper: MetadataWrapper
    nodes: Nodes
    bindings: Sequence[Binding]
    uses: Sequence[Use]
    #: The uses of unamp's own names.
    ours: Sequence[Use]
    #: The number of uses of each binding in expressions. Uses in strings (annotations, `__all__`)
    #: are counted apart: they stay as they are.
    accesses: Mapping[Binding, int]
    in_strings: Mapping[Binding, int]
    #: The names that the file binds at its top level, except by imports.
    own: frozenset[str]

    @property
    def roots(self) -> frozenset[str]:
        """Return the packages that the file imports."""
        return frozenset(binding.imported.partition(".")[0] for binding in self.bindings)

    def start_of(self, node: cst.CSTNode) -> CodePosition:
        """Return the position where a node begins: its line from 1, its column from 0."""
        return self.wrapper.resolve(PositionProvider)[node].start

    def finding(
        self, kind: Kind, node: cst.CSTNode, framework: str = "", *, said: str = "", **words: str
    ) -> Finding:
        """Return a finding at the position of a node.

        Args:
            said: the code to show; the node's own, shortened, where not given.
            words: further fields of the finding.
        """
        start = self.start_of(node)
        code, column = said or shortened_code(node), start.column + 1
        return Finding(start.line, column, kind, code, framework, **words)  # type: ignore[arg-type]


def read_source(text: str, exports: Exports) -> Source:
    """Return a file's tree, with the uses of the frameworks' names in it.

    Raises:
        libcst.ParserSyntaxError: where the text is not Python.
    """
    module = cst.parse_module(text)
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    nodes = Nodes()
    module.visit(nodes)
    bindings = {
        binding: None for statement in nodes.imports for binding in _bound(statement, exports)
    }
    scopes = {scope for scope in wrapper.resolve(ScopeProvider).values() if scope is not None}
    finder = _Finder(nodes, grouped(bindings, lambda binding: binding.statement), exports)
    uses = [use for scope in scopes for use in finder.uses(scope)]
    own = {
        a.name for scope in scopes for a in scope.assignments if not isinstance(a, ImportAssignment)
    }
    exported = _exported(nodes)
    in_strings = {b: finder.in_strings[b] + (b.bound in exported) for b in bindings}
    return Source(
        module,
        wrapper,
        nodes,
        list(bindings),
        uses,
        finder.ours,
        finder.accesses,
        in_strings,
        frozenset(own),
    )


def _bound(statement: Import, exports: Exports) -> Iterator[Binding]:
    if isinstance(statement.names, cst.ImportStar):
        return
    module = (
        get_full_name_for_node(statement.module)
        if isinstance(statement, cst.ImportFrom) and statement.module
        else ""
    )
    level = len(statement.relative) if isinstance(statement, cst.ImportFrom) else 0
    for alias in statement.names:
        real = get_full_name_for_node(alias.name) or ""
        if isinstance(statement, cst.Import):
            yield Binding(statement, alias, real, alias.evaluated_alias or real.partition(".")[0])
            continue
        name = f"{module}.{real}" if module else real
        own = bool(level) or not table().framework_of(name)
        names = sorted(exports.resolve(exports.absolute(level, name) if level else name))
        known = next(filter(table().framework_of, names), None)
        assumed = own and known is None and real in table().usual
        imported = table().usual[real] if assumed else known or names[0]
        yield Binding(
            statement, alias, imported, alias.evaluated_alias or real, own, assumed, len(names) > 1
        )


class _Finder:
    """Finds, for each name used in a scope, the imports that it comes through."""

    def __init__(
        self, nodes: Nodes, bindings: Mapping[Import, list[Binding]], exports: Exports
    ) -> None:
        self.accesses: Counter[Binding] = Counter()
        self.in_strings: Counter[Binding] = Counter()
        self.ours: list[Use] = []
        self._nodes, self._bindings, self._exports = nodes, bindings, exports

    def uses(self, scope: Scope) -> Iterator[Use]:
        """Return the uses of the frameworks' names in a scope."""
        for access in scope.accesses:
            root: cst.BaseExpression = access.node
            while isinstance(root, cst.Attribute):
                root = root.value
            imports = [r for r in access.referents if isinstance(r, ImportAssignment)]
            if not isinstance(root, cst.Name):
                # a use in a string annotation: it is not rewritten, and keeps its import
                for found in imports:
                    self.in_strings.update(self._bound(found, found.name))
                continue
            through = [each for found in imports for each in self._bound(found, root.value)]
            chain = _chain(root, self._nodes)
            names = {
                name for each in through for name in self._exports.resolve(_dotted(each, chain))
            }
            several = (
                len(names) > 1
                or len(imports) < len(access.referents)
                or any(each.several for each in through)
            )
            self.accesses.update(dict.fromkeys(through, 1))
            self.ours += [
                Use(chain[-1], name, None, (), several)
                for name in sorted(names)[:1]
                if name.startswith("unamp.")
            ]
            known = [name for name in sorted(names) if table().framework_of(name)]
            yield from _as_use(chain, known, tuple(dict.fromkeys(through)), several)

    def _bound(self, found: ImportAssignment, name: str) -> list[Binding]:
        bindings = self._bindings.get(found.node, [])  # type: ignore[call-overload]
        return [each for each in bindings if each.bound == name]


def _chain(root: cst.Name, nodes: Nodes) -> list[cst.BaseExpression]:
    """Return a name's node and the nodes of the attributes after it, from the inside out."""
    chain: list[cst.BaseExpression] = [root]
    while (
        isinstance(parent := nodes.parents.get(chain[-1]), cst.Attribute)
        and parent.value is chain[-1]
    ):
        chain.append(parent)
    return chain


def _dotted(binding: Binding, chain: Sequence[cst.BaseExpression]) -> str:
    rest = [node.attr.value for node in chain if isinstance(node, cst.Attribute)]
    plain = isinstance(binding.statement, cst.Import) and binding.alias.asname is None
    return ".".join([binding.bound if plain else binding.imported, *rest])


def _exported(nodes: Nodes) -> set[str]:
    return {
        str(string.evaluated_value)
        for string in nodes.strings
        if any(
            isinstance(node, (cst.Assign, cst.AugAssign, cst.AnnAssign))
            and "__all__" in map(get_full_name_for_node, targets_of(node))
            for node in nodes.around(string)
        )
    }


def targets_of(node: cst.Assign | cst.AugAssign | cst.AnnAssign) -> list[cst.BaseExpression]:
    """Return the expressions that an assignment binds."""
    if isinstance(node, cst.Assign):
        return [each.target for each in node.targets]
    return [node.target]


def _as_use(
    chain: Sequence[cst.BaseExpression],
    names: Sequence[str],
    through: tuple[Binding, ...],
    several: bool,
) -> Iterator[Use]:
    for name in names:
        if found := table().row_of(name):
            row, rest = found
            # one node, `amp`, may be several parts of a name (`import torch.cuda.amp as amp`)
            if rest < len(chain):
                yield Use(chain[len(chain) - 1 - rest], row.name, row, through, several, rest)
                return
    if inside := next((name for name in names if table().module_of(name)), None):
        yield Use(chain[-1], inside, None, through, several)
