"""Pairs of layers of two runs whose names differ: proposed, or read from a file.

The format of the file is described in docs/tracing.md.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unamp import _strict_json as strict
from unamp._grouping import grouped
from unamp.adapter.records import OpRecord
from unamp.errors import nearest, shortened
from unamp.tracing.aligning import aligned

FORMAT, VERSION = "unamp layers", 1

#: The name, in a file and in the tables, for operations outside of layers.
_OUTSIDE = "-"

Layer = str | None
Pair = tuple[Layer, Layer]

#: An operation, and its result's sizes, sorted.
Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class LayerMapping:
    """The layers that are the same in a reference and in another run.

    Attributes:
        pairs: a layer's name in the reference and in the other run, as the records have it; None
            means outside of layers. A layer that is several in the other run has several pairs.
        reasons: the reason why a pair was proposed.
        alone: the layers without a partner in a proposal: of the reference, and of the other run.
    """

    pairs: tuple[Pair, ...]
    reasons: Mapping[Pair, str] = field(default_factory=dict, compare=False)
    alone: tuple[tuple[Layer, ...], tuple[Layer, ...]] = field(default=((), ()), compare=False)

    def groups(self) -> tuple[dict[Layer, int], dict[Layer, int]]:
        """Return the group number of each layer: in the reference, and in the other run."""
        groups: tuple[dict[Layer, int], dict[Layer, int]] = ({}, {})
        for new, (left, right) in enumerate(self.pairs):
            joined = {groups[0].get(left, new), groups[1].get(right, new)}
            for side, layer in zip(groups, (left, right), strict=True):
                side[layer] = new
                side.update({each: new for each, group in side.items() if group in joined})
        return groups

    def check(self, reference: Iterable[OpRecord], other: Iterable[OpRecord]) -> None:
        """Check that both runs have the layers.

        Raises:
            ValueError: where a run lacks a layer; the message names it, and a similar one.
        """
        for side, (name, records) in enumerate(
            (("the reference", reference), ("the other run", other))
        ):
            layers = dict.fromkeys(record.layer for record in records)
            for pair in self.pairs:
                if pair[side] not in layers:
                    hint = nearest(
                        _spelled(pair[side]),
                        map(_spelled, layers),
                        "`unamp trace` shows its layers",
                    )
                    raise ValueError(
                        f"{name} has no layer {shortened(_spelled(pair[side]))}; {hint}"
                    )

    def to_toml(self) -> str:
        """Return the text of a file that `from_toml` reads.

        Raises:
            ValueError: for a layer whose name a file cannot hold.
        """
        lines = [
            (
                "# Which layer of the reference (left) is which of the other run (right). "
                "A layer that is several has a list."
            ),
            (
                '# "-" is what ran outside of layers. '
                "Layers that are not named here are matched by their own names."
            ),
            f"format = {_quoted(FORMAT)}",
            f"version = {VERSION}",
            "",
            "[layers]",
        ]
        for left in dict.fromkeys(pair[0] for pair in self.pairs):
            partners = [pair[1] for pair in self.pairs if pair[0] == left]
            written = [_quoted(_spelled(each)) for each in partners]
            why = "; ".join(filter(None, (self.reasons.get((left, each), "") for each in partners)))
            value = written[0] if len(written) == 1 else f"[{', '.join(written)}]"
            lines.append(f"{_quoted(_spelled(left))} = {value}" + (f"  # {why}" if why else ""))
        for name, alone in zip(("reference", "other run"), self.alone, strict=True):
            if alone:
                lines += [
                    "",
                    f"# Without a partner in the {name}:",
                    *(f"# {_quoted(_spelled(each))}" for each in alone),
                ]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str) -> LayerMapping:
        """Return the mapping that a file's text has.

        Raises:
            ValueError: where the text is no mapping; the message says where and why.
        """
        return cls(strict.toml(text, _read, "mapping of layers"))


def _read(data: dict[str, Any]) -> tuple[Pair, ...]:
    names = ("format", "version", "layers")
    found = strict.fields("the file", data, names, names)
    if found["format"] != FORMAT:
        raise strict.BadJSON(f"format: must be {FORMAT!r}, not {shortened(found['format'], 40)}")
    if strict.whole("version", found["version"]) != VERSION:
        raise strict.BadJSON(
            f"version: {found['version']} is not known; this unamp reads version {VERSION}"
        )
    pairs: list[Pair] = []
    for left, value in strict.expect("layers", found["layers"], dict, "a table").items():
        where = f"layers, {shortened(left, 40)}"
        name = strict.plain_text(where, left)
        rights = (
            strict.each(strict.plain_text)(where, value)
            if isinstance(value, list)
            else [strict.plain_text(where, value)]
        )
        pairs += [(_layer(name), _layer(right)) for right in rights]
    if len(set(pairs)) < len(pairs):
        twice = next(pair for pair, count in Counter(pairs).items() if count > 1)
        raise strict.BadJSON(
            f"layers, {shortened(_spelled(twice[0]), 40)}: names "
            f"{shortened(_spelled(twice[1]), 40)} twice"
        )
    return tuple(pairs)


def _layer(name: str) -> Layer:
    return None if name == _OUTSIDE else name


def _spelled(layer: Layer) -> str:
    return _OUTSIDE if layer is None else layer


def _quoted(name: str) -> str:
    if not name.isprintable():
        raise ValueError(
            f"a file cannot hold the name of a layer that is not printable: {shortened(name)}"
        )
    return json.dumps(name, ensure_ascii=False)


class _Candidate(NamedTuple):
    """Two layers that may be the same, with the evidence.

    Attributes:
        left, right: the numbers of the layers, in the order in which they first ran.
        alike: the share of their operations that both have, with results of the same shape.
        in_order: the share of their operations that are the same where both runs are followed from
            the beginning.
        named: the similarity of their names.
    """

    left: int
    right: int
    alike: float
    in_order: float
    named: float

    @property
    def score(self) -> float:
        """Return the sum of all three; names count least, since they may be alike by chance."""
        return self.alike + self.in_order + 0.5 * self.named


def propose(left: Sequence[OpRecord], right: Sequence[OpRecord]) -> LayerMapping:
    """Return the layers of two runs that are probably the same.

    Two layers are probably the same if they have the same operations with results of the same size,
    in the same order. Their names count least. The best pair is taken first. A layer without a
    partner then joins the layer that has more than half of its operations: attention is one layer
    in one framework, and a layer with four inside in another.
    """
    keys = [[_key(record) for record in run] for run in (left, right)]
    by_layer = [grouped(run, lambda record: record.layer) for run in (left, right)]
    layers = [list(of_run) for of_run in by_layer]
    has = [[Counter(map(_key, inner)) for inner in of_run.values()] for of_run in by_layer]
    places = [{layer: n for n, layer in enumerate(of_run)} for of_run in layers]
    pairs = aligned((keys[0], keys[1]), ([k[0] for k in keys[0]], [k[0] for k in keys[1]]))
    together = Counter((places[0][left[i].layer], places[1][right[j].layer]) for i, j in pairs)
    candidates = []
    for a, in_a in enumerate(has[0]):
        for b, in_b in enumerate(has[1]):
            # A name alone makes no pair: operations that run outside of layers in one framework
            # may be in a layer in another.
            if (shared := (in_a & in_b).total()) or together[a, b]:
                size = in_a.total() + in_b.total()
                named = _similar(layers[0][a], layers[1][b])
                candidates.append(
                    _Candidate(a, b, 2 * shared / size, 2 * together[a, b] / size, named)
                )
    candidates.sort(key=lambda each: (-each.score, each.left, each.right))
    taken: tuple[set[int], set[int]] = (set(), set())
    chosen: list[_Candidate] = []
    for each in candidates:
        if each.left not in taken[0] and each.right not in taken[1]:
            chosen.append(each)
            taken[0].add(each.left)
            taken[1].add(each.right)
    for each in candidates:
        a, b, mine = each.left, each.right, together[each.left, each.right]
        if (a not in taken[0] and 2 * mine > has[0][a].total()) or (
            b not in taken[1] and 2 * mine > has[1][b].total()
        ):
            chosen.append(each)
            taken[0].add(a)
            taken[1].add(b)
    chosen.sort()
    reasons = {
        (layers[0][each.left], layers[1][each.right]): _why(
            each, has[0][each.left], together[each.left, each.right]
        )
        for each in chosen
    }
    alone = [
        tuple(layer for n, layer in enumerate(of) if n not in side)
        for of, side in zip(layers, taken, strict=True)
    ]
    return LayerMapping(tuple(reasons), reasons, (alone[0], alone[1]))


def _key(record: OpRecord) -> Key:
    """Return the operation and its result's sorted sizes: frameworks order axes differently."""
    return record.op, tuple(sorted(size or 0 for size in record.output_shape or ()))


def _why(each: _Candidate, has: Counter[Key], together: int) -> str:
    most = ", ".join(dict.fromkeys(op for (op, _), _ in has.most_common(3)))
    return f"{most}: {together} of {has.total()} in order"


def _similar(a: Layer, b: Layer) -> float:
    """Return the similarity of two names, from 0 to 1, without the classes of their networks."""
    if a is None or b is None:
        return 1.0 if a is b else 0.0
    words = [re.findall(r"[a-z]+|\d+", name.partition(".")[2].lower()) for name in (a, b)]
    return difflib.SequenceMatcher(
        None, " ".join(words[0]), " ".join(words[1]), autojunk=False
    ).ratio()
