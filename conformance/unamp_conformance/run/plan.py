"""The plan of a run: the items to do, in order, from the user's selection."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from types import MappingProxyType
from typing import Any

from unamp.adapter.layered_networks import LAYER_WAYS
from unamp.dtypes import LOW_DTYPES, low_dtype
from unamp.errors import unknown
from unamp.lists import read
from unamp.policy import LEVELS, Policy, Rule
from unamp.presets import PRESETS, preset
from unamp.typing import DtypeLike, Level, PresetName
from unamp.vocabulary import vocabulary
from unamp_conformance.check.agreement import NEEDED, NEEDED_OF_OPERATIONS
from unamp_conformance.check.behaviours import BEHAVIOURS
from unamp_conformance.check.layerchecks import LAYER_CASES
from unamp_conformance.check.netchecks import NETWORK_CHECKS
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.check.programs import OPERATIONS
from unamp_conformance.check.training import QUICK
from unamp_conformance.subjects import policy_name

__all__ = [
    "CHECKS",
    "LISTED",
    "NOTHING_SELECTED",
    "Item",
    "Selection",
    "full_items",
    "items",
    "items_to_read",
]

#: Every kind of check, with the question that it answers.
CHECKS: Mapping[str, str] = {
    "coverage": (
        "has every operation of the framework an example call whose numbers tell the precision?"
    ),
    "probe": (
        "does an operation compute in the precision that the policy says, "
        "judged by the numbers alone?"
    ),
    "decisions": "does the trace of a network agree with the policy, operation by operation?",
    "outputs": "are outputs and loss within the dtype's bound of float64?",
    "gradients": "are gradients within the dtype's bound of float64?",
    "dtypes": "do float32 parameters keep their dtype and get float32 gradients?",
    "statistics": "are running statistics updated, and in float32?",
    "agreement": (
        "do frameworks, each in a process of its own, come to the same decisions and numbers, "
        "operation by operation?"
    ),
    "behaviour": "nesting, exceptions, threads, the cache of casts",
    "ways": (
        "is a policy followed in every way in which a framework runs a function, "
        "or refused before it computes?"
    ),
    "layers": (
        "does a rule for layers hold by the numbers, eagerly, compiled and exported, "
        "and is it gone once it is removed?"
    ),
    "tensors": (
        "are kinds of tensor that are not one dense array followed, refused or left alone, "
        "as the adapter says?"
    ),
    "training": (
        "does training with loss scaling come to the loss of float32 training, "
        "through an overflow and a restart?"
    ),
}


#: The presets whose lists are probed. `none` has no lists but the user's, which every run probes.
#: `torch-mps` is `torch-cuda` except for a dozen operations, and runs only where it is selected.
LISTED = tuple(name for name in PRESETS if name not in ("none", "torch-mps"))


#: The message for a selection that no check fits.
NOTHING_SELECTED = (
    "no check fits all that was asked for: operations have the checks coverage and probe, "
    "networks all others, and only those that keep statistics have that one"
)


@dataclass(frozen=True)
class Selection:
    """A selection of checks to run; an empty tuple selects all.

    Attributes:
        levels, presets, networks: names.
        dtypes: low dtypes, in any spelling.
        checks: kinds of check.
        ways: names of a framework's ways, with ``*`` as a wildcard.
        ops: operations, in any spelling; with ``*`` as a wildcard, or a group (``group:norm``). The
            attribute has the canonical names. Where networks or operations are named, only these
            are run; both can be named.
        full: probe every operation under every policy, not only under the policies that can show a
            broken rule; with every feed, where the lists are the user's or the default's. Also
            train every network, and for all steps.
        brief: of the selected items, run all networks under the default preset, and a draw of the
            rest; see `unamp_conformance.run.drawing`.
        sample: the number of items to draw from the plan; see there; 0 runs all.
        seed: the seed of the draw.

    Raises:
        ValueError: for an unknown name.
    """

    levels: tuple[Level, ...] = ()
    dtypes: tuple[str, ...] = ()
    presets: tuple[PresetName, ...] = ()
    networks: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    full: bool = False
    ways: tuple[str, ...] = ()
    brief: bool = False
    sample: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        valid = {"levels": LEVELS, "presets": PRESETS, "networks": NETWORKS, "checks": CHECKS}
        for name, known in valid.items():
            if wrong := [value for value in getattr(self, name) if value not in known]:
                raise ValueError(unknown(name[:-1], wrong[0], known))
        object.__setattr__(self, "dtypes", tuple(dict.fromkeys(map(low_dtype, self.dtypes))))
        ops = read("op", self.ops, casts=True)
        object.__setattr__(
            self, "ops", () if ops.everything else tuple(sorted(ops.named | ops.meant))
        )

    @property
    def whole(self) -> bool:
        """Return whether the selection leaves nothing out."""
        named = (
            self.levels,
            self.dtypes,
            self.presets,
            self.networks,
            self.checks,
            self.ops,
            self.ways,
        )
        return not any(named) and not self.draws

    @property
    def draws(self) -> bool:
        """Return whether items are drawn from the plan."""
        return self.brief or self.sample > 0

    def nothing(self) -> bool:
        """Return whether no framework has a check that fits.

        Ways and kinds of tensor are not considered: only a framework's adapter knows them.
        """
        ops = tuple(vocabulary())
        return (
            next(items(self, ops, self.ways or ("any",), tensor_kinds={"any": ops}), None) is None
        )

    def wants(self, check: str) -> bool:
        """Return whether a kind of check is selected; ways that are named select only ways."""
        return check in self.checks if self.checks else check == "ways" or not self.ways

    def as_dict(self) -> dict[str, Any]:
        """Return the selection for results and for the worker; `from_dict` is the inverse."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Selection:
        """Return the selection that `as_dict` returned."""
        values: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in data.items()
        }
        return cls(**values)


@dataclass(frozen=True)
class Item:
    """One piece of work, which a worker does at a time.

    Attributes:
        kind: ``"operation"``, ``"network"``, ``"behaviour"``, ``"training"``, ``"way"``,
            ``"layers"`` or ``"tensors"``.
        subject: the operation, network, behaviour or case of rules for layers.
        policies: the policies, by their names in results.
        checks: the kinds of check that it gives results for.
        way: the name of the framework's way in which it runs, for the kinds ``"way"`` and
            ``"layers"``; the kind of tensor, for ``"tensors"``.
    """

    kind: str
    subject: str
    policies: Mapping[str, Policy]
    checks: tuple[str, ...]
    way: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the item for the runner, with the names of policies only."""
        return {**vars(self), "policies": list(self.policies), "checks": list(self.checks)}


def items(
    selection: Selection,
    spelled: Sequence[str],
    ways: Iterable[str] = (),
    dear: Collection[str] = (),
    tensor_kinds: Mapping[str, Collection[str]] = MappingProxyType({}),
    *,
    sparing: bool = False,
    beside: bool = False,
) -> Iterator[Item]:
    """Yield the items of a selection.

    Args:
        selection: the user's selection.
        spelled: the operations that the framework has.
        ways: the names of the ways in which the framework runs functions.
        dear: the ways in which one run takes seconds.
        tensor_kinds: for each kind of tensor, the operations that it has.
        sparing: check each operation and network under one low dtype only, unless the run is full.
        beside: check less, for a device whose numbers and decisions are compared with another
            device's. A thorough run then leaves ways out unless they are selected, and probes an
            operation only under the user's lists and the default preset's, in one dtype, which
            alternates from operation to operation.
    """
    sparing, fewer = sparing and not selection.full, beside and not selection.full
    if selection.wants("behaviour") and not (selection.ops or selection.networks):
        for name in BEHAVIOURS:
            for dtype in (
                _with_one_dtype(selection, name) if sparing else selection
            ).dtypes or LOW_DTYPES:
                yield Item(
                    "behaviour", name, {f"O1 {dtype} unamp": Policy("O1", dtype)}, ("behaviour",)
                )
    if "training" in selection.checks or not (
        selection.checks or selection.ops or selection.networks or selection.ways
    ):
        for name in NETWORKS if selection.full else QUICK:
            if name in (selection.networks or NETWORKS):
                for policy in _trained(_with_one_dtype(selection, name) if sparing else selection):
                    yield Item("training", name, {policy_name(policy): policy}, ("training",))
    compared = (*NEEDED, *NEEDED_OF_OPERATIONS) if "agreement" in selection.checks else ()
    networks = tuple(
        check for check in NETWORK_CHECKS if selection.wants(check) or check in compared
    )
    if networks and (selection.networks or not selection.ops):
        for name, network in NETWORKS.items():
            if name in (selection.networks or NETWORKS):
                checks = tuple(c for c in networks if c != "statistics" or network.buffers)
                chosen = _with_one_dtype(selection, name) if sparing else selection
                for policy in (
                    _matrix(chosen.levels, chosen.dtypes, chosen.presets) if checks else ()
                ):
                    yield Item("network", name, {policy_name(policy): policy}, checks)
    if selection.wants("layers") and not (selection.ops or selection.networks or beside):
        # not on a device beside the CPU: the network of these cases is on the CPU
        yield from _layers(selection)
    if selection.wants("tensors") and not (selection.networks or beside):
        yield from _tensors(selection, tensor_kinds, sparing=sparing)
    asked = "ways" in selection.checks or selection.ways
    if selection.wants("ways") and (asked or not (selection.ops or selection.networks or fewer)):
        yield from _ways(selection, spelled, ways, dear)
    checks = tuple(
        check for check in ("coverage", "probe") if selection.wants(check) or check in compared
    )
    if checks and (selection.ops or not selection.networks):
        for number, op in enumerate(spelled):
            if not selection.ops or op in selection.ops:
                chosen = _with_one_dtype(selection, op) if sparing else selection
                dtypes = chosen.dtypes or LOW_DTYPES
                probed = (
                    replace(chosen, dtypes=(dtypes[number % len(dtypes)],)) if fewer else chosen
                )
                yield Item("operation", op, _probed(probed, op, fewer=fewer), checks)


def items_to_read(
    selection: Selection, spelled: Sequence[str], *, sparing: bool = False
) -> Iterator[Item]:
    """Yield the items of a selection for an absent device: the decisions about its programs.

    Args:
        selection: the user's selection.
        spelled: the operations that the framework has.
        sparing: as in `items`, for networks. An operation has each dtype, or one in a brief run.
    """
    if selection.wants("decisions") and (selection.networks or not selection.ops):
        for name in selection.networks or NETWORKS:
            chosen = (
                _with_one_dtype(selection, name) if sparing and not selection.full else selection
            )
            for policy in _matrix(chosen.levels, chosen.dtypes, chosen.presets):
                yield Item("network", name, {policy_name(policy): policy}, ("decisions",))
    if selection.wants("probe") and (selection.ops or not selection.networks):
        for op in spelled:
            if op in (selection.ops or spelled):
                chosen = _with_one_dtype(selection, op) if selection.brief else selection
                yield Item("operation", op, _read(chosen, op), ("probe",))


def _read(selection: Selection, op: str) -> dict[str, Policy]:
    """Return the policies under which an operation's program is read.

    They are the user's own lists, and each level of the default preset.
    """
    presets = selection.presets or (LISTED if selection.full else PRESETS[:1])
    found = {} if selection.levels or selection.presets else _listed(selection, op)
    return found | {
        policy_name(policy): policy
        for policy in _matrix(selection.levels, selection.dtypes, presets)
    }


def _with_one_dtype(selection: Selection, subject: str) -> Selection:
    dtypes = selection.dtypes or LOW_DTYPES
    return replace(selection, dtypes=(dtypes[zlib.crc32(subject.encode()) % len(dtypes)],))


def _layers(selection: Selection) -> Iterator[Item]:
    """Yield the cases of rules for layers in every way.

    A thorough run has the eager cases under every dtype, and each other case under one, in turn.
    """
    dtypes = selection.dtypes or LOW_DTYPES
    for number, (way, case) in enumerate(product(LAYER_WAYS, LAYER_CASES)):
        chosen = dtypes if selection.full or way == "eager" else [dtypes[number % len(dtypes)]]
        yield Item(
            "layers",
            case,
            {f"O1 {dtype} unamp": Policy("O1", dtype) for dtype in chosen},
            ("layers",),
            way,
        )


def _tensors(
    selection: Selection, kinds: Mapping[str, Collection[str]], *, sparing: bool
) -> Iterator[Item]:
    """Yield each operation of each kind of tensor, on the user's allow list and on the deny list.

    A selection of levels or presets leaves these items out.
    """
    if selection.levels or selection.presets:
        return
    for kind, ops in kinds.items():
        for op in ops:
            if op in (selection.ops or ops):
                dtypes = (
                    _with_one_dtype(selection, op) if sparing else selection
                ).dtypes or LOW_DTYPES
                policies = {
                    name: policy for dtype in dtypes for name, policy in _listing(op, dtype).items()
                }
                yield Item("tensors", op, policies, ("tensors",), kind)


def _listing(op: str, dtype: DtypeLike) -> dict[str, Policy]:
    """Return the policies with an operation on the user's own lists.

    For a cast, which no list takes, it is the default policy.
    """
    if vocabulary()[op].is_cast:
        return {policy_name(default := Policy("O1", dtype)): default}
    return {
        f"allow {dtype}": Policy("O1", dtype, allow=(op,)),
        f"deny {dtype}": Policy("O1", dtype, deny=(op,)),
    }


def _listed(selection: Selection, op: str) -> dict[str, Policy]:
    return {
        name: policy
        for dtype in selection.dtypes or LOW_DTYPES
        for name, policy in _listing(op, dtype).items()
    }


@cache
def _matrix(
    levels: tuple[Level, ...], dtypes: tuple[str, ...], presets: tuple[PresetName, ...]
) -> Sequence[Policy]:
    """Return a policy of each level, dtype and preset; an empty tuple stands for all."""
    every = presets or LISTED
    return tuple(
        Policy(level, dtype, preset=name)
        for level, dtype in product(levels or LEVELS, dtypes or LOW_DTYPES)
        # O0 changes nothing under any preset: one is enough
        for name in (every if level != "O0" else every[:1])
    )


def _ways(
    selection: Selection, spelled: Sequence[str], ways: Iterable[str], dear: Collection[str]
) -> Iterator[Item]:
    """Yield the networks and operations to run in every way, each with its policies.

    A full run has all of them under every level and dtype. A thorough run takes turns: under one
    level and dtype a way runs a network, and under the next one two operations. They differ from
    turn to turn and from way to way. A way that takes seconds runs one operation.
    """
    networks = [
        name
        for name in NETWORKS
        if name in selection.networks or not (selection.networks or selection.ops)
    ]
    ops = [
        op
        for op in OPERATIONS
        if op in spelled and (op in selection.ops or not (selection.networks or selection.ops))
    ]
    levels = selection.levels or tuple(level for level in LEVELS if selection.full or level != "O0")
    cells = [(level, dtype) for level in levels for dtype in selection.dtypes or LOW_DTYPES]
    presets = selection.presets or LISTED
    for way in ways:
        if selection.ways and not any(fnmatchcase(way, pattern) for pattern in selection.ways):
            continue
        start, found = zlib.crc32(way.encode()), defaultdict[str, dict[str, Policy]](dict)
        for number, (level, dtype) in enumerate(cells, start):
            # half of the policies have the default preset; the other half takes presets in turn
            policy = Policy(
                level,
                dtype,
                preset=presets[number // 4 % len(presets)] if number // 2 % 2 else presets[0],
            )
            chosen = (
                [*networks, *ops]
                if selection.full or selection.networks or selection.ops
                else _met(networks, ops, number)
            )
            if way in dear and not selection.full:
                chosen = (
                    (ops or networks)[start % len(ops or networks) :][:1]
                    if number - start == start // 2 % len(cells)
                    else []
                )
            for subject in chosen:
                found[subject][policy_name(policy)] = policy
        for subject, policies in found.items():
            yield Item("way", subject, policies, ("ways",), way)


def _met(networks: Sequence[str], ops: Sequence[str], number: int) -> list[str]:
    """Return one network for an even number, two operations for an odd one.

    Successive numbers take successive networks and operations.
    """
    chosen = [(ops, number - 1), (ops, number)] if number % 2 else [(networks, number // 2)]
    return [every[n % len(every)] for every, n in chosen if every]


def _trained(selection: Selection) -> Iterator[Policy]:
    for level in ("O1", "O2"):
        for dtype in selection.dtypes or LOW_DTYPES:
            if level in (selection.levels or LEVELS) and "unamp" in (selection.presets or PRESETS):
                yield Policy(level, dtype)


def _probed(selection: Selection, op: str, *, fewer: bool = False) -> dict[str, Policy]:
    """Return the policies to probe an operation under: the user's own lists, then the presets'.

    Args:
        selection: the user's selection.
        op: the operation.
        fewer: of the presets, take only the default.
    """
    found: dict[str, Policy] = {}
    chosen = bool(selection.levels or selection.presets)
    if not chosen:
        found |= _listed(selection, op)
    levels = selection.levels or (tuple(LEVELS) if selection.full else ("O1",))
    presets = selection.presets or PRESETS[:1] if fewer else selection.presets
    policies = _matrix(levels, selection.dtypes, presets)
    for policy in (
        policies
        if chosen or selection.full
        else (*_telling(op, policies), *_deeper(selection, op, fewer=fewer))
    ):
        found[policy_name(policy)] = policy
    return found


def _deeper(selection: Selection, op: str, *, fewer: bool) -> Iterator[Policy]:
    """Yield the default preset's policies at the levels above O1, with one dtype for each level.

    The dtype alternates from level to level.
    """
    dtypes = selection.dtypes or LOW_DTYPES
    levels: tuple[Level, ...] = () if fewer else ("O2", "O3")
    for number, level in enumerate(levels, zlib.crc32(op.encode())):
        yield Policy(level, dtypes[number % len(dtypes)])


def _telling(op: str, policies: Iterable[Policy]) -> Iterator[Policy]:
    """Yield the policies, of those at one level, that a thorough run probes an operation under.

    They have the default preset, the framework's own, each first preset that gives the operation
    another rule, and one more preset, drawn by the operation's name: so every list is covered.
    """
    drawn = _DRAWN[zlib.crc32(op.encode()) % len(_DRAWN)]
    rules: set[Rule] = set()
    for policy in policies:
        always = policy.preset in _ALWAYS
        if always or (policy.preset, policy.dtype) == drawn or policy.decide(op) not in rules:
            yield policy
            if not preset(policy.preset).delegates:
                rules.add(policy.decide(op))


#: The presets under which a thorough run probes every operation, and those of which it draws one.
_ALWAYS = (PRESETS[0], "native")
_DRAWN = [(name, dtype) for name in LISTED for dtype in LOW_DTYPES if name not in _ALWAYS]


def full_items(
    selection: Selection, ops: Sequence[str], ways: Sequence[str] = ()
) -> Iterator[Item]:
    """Yield the items of all full runs: of the selection, and of each of its presets alone."""
    presets = selection.presets or LISTED
    for chosen in (selection.presets, *((name,) for name in presets)):
        yield from items(replace(selection, full=True, presets=chosen), ops, ways)
