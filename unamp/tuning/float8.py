"""`unamp.tune` in float8: a study of the layers whose products could be in float8.

It only tells them and their errors: no region computes in float8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from unamp.adapter.float8 import in_float8
from unamp.adapter.records import OpRecord
from unamp.adapter.shadowing import PRODUCTS
from unamp.dtypes import shadow_dtype
from unamp.errors import NotExpressible
from unamp.policy import Policy
from unamp.tracing import trace, work_of
from unamp.tracing.tables import text_table
from unamp.tuning import checks
from unamp.tuning.reports import plain
from unamp.tuning.subject import Subject
from unamp.typing import DtypeLike

#: The divisor of the sizes of a weight that float8 kernels need.
_MULTIPLE = 16


class Float8Layer(NamedTuple):
    """A layer that multiplies matrices, and its errors in float8.

    Attributes:
        layer: the layer's name in the network.
        own: the largest error of the layer's own products in float8, from the same inputs: the
            relative norm of the difference.
        alone: the error of the network's results with only this layer in float8; None if untried.
        work: the layer's share of the network's products of two numbers.
        why: the reason why the layer should not be in float8; empty where it may be.
    """

    layer: str
    own: float
    alone: float | None
    work: float
    why: str = ""


class Float8Study:
    """The layers that may be in float8 together, and lists of them for tools that can run them.

    Attributes:
        dtype: the dtype of the factors that was tried; gradients were in float8_e5m2.
        tolerance: the error that was allowed.
        error: the error of the network's results with all of `names` in float8.
        layers: every layer that multiplies matrices, in the order in which they first ran.
        runs: the number of runs of the function.
    """

    def __init__(
        self, dtype: str, tolerance: float, error: float, layers: Sequence[Float8Layer], runs: int
    ) -> None:
        self.dtype, self.tolerance, self.error, self.runs = dtype, tolerance, error, runs
        self.layers = tuple(layers)

    def __repr__(self) -> str:
        return (
            f"<Float8Study: {len(self.names)} of {len(self.layers)} layers, error {self.error:.2g}>"
        )

    @property
    def names(self) -> list[str]:
        """The names of the layers that may be in float8 together."""
        return [each.layer for each in self.layers if not each.why]

    def table(self) -> str:
        """Return every layer as plain text, with remarks on the whole study below."""
        head = ("layer", "products", "own error", "results, it alone", "float8")
        rows = [
            (
                each.layer, f"{each.work:.1%}", f"{each.own:.2g}",
                "-" if each.alone is None else f"{each.alone:.2g}", each.why or "yes",
            )
            for each in self.layers
        ]  # fmt: skip
        work = sum(each.work for each in self.layers if not each.why)
        said = (
            f"{len(self.names)} of {len(self.layers)} layers would bear {self.dtype}, {work:.1%} "
            f"of the products: error {self.error:.2g} of {self.tolerance:.2g} allowed, "
            f"{self.runs} runs"
        )
        return "\n".join([text_table(head, rows), said])

    def module_filter_fn(self, module: Any, name: str) -> bool:
        """Return whether a module may be in float8.

        torchao's ``convert_to_float8_training`` takes this method as ``module_filter_fn``.

        Args:
            module: the module. It is not looked at: torchao converts only linear layers.
            name: the module's name in the network.
        """
        return name in self.names

    def keras_filters(self) -> list[str]:
        """Return the ``filters`` of Keras' ``model.quantize("float8", filters=...)``.

        They are a pattern for each layer's own name. A layer is left out if a layer with the same
        own name, elsewhere in the network, has to stay.
        """
        own = {name: name.rpartition(".")[2] for name in (each.layer for each in self.layers)}
        stay = {own[each.layer] for each in self.layers if each.why}
        return [f"^{re.escape(own[name])}$" for name in self.names if own[name] not in stay]

    def transformer_engine(self) -> str:
        """Return a YAML file for Transformer Engine's debug tools, with FP8 off in layers to keep.

        Transformer Engine runs all of its layers in FP8 inside of its own context. Its layers must
        have the same names as the network's layers.
        """
        stay = [re.escape(each.layer) for each in self.layers if each.why]
        if not stay:
            return "# every layer that was studied would bear float8\n"
        pattern = f"(.*\\.)?({'|'.join(stay)})$".replace("'", "''")
        return (
            "stays_as_it_is:\n"
            "  enabled: True\n"
            "  layers:\n"
            f"    layer_name_regex_pattern: '{pattern}'\n"
            "  transformer_engine:\n"
            "    DisableFP8Layer:\n"
            "      enabled: True\n"
        )

    def to_data(self) -> dict[str, Any]:
        """Return the study as plain values, for JSON; an error that is not finite is None."""
        return {
            name: plain(getattr(self, name))
            for name in ("dtype", "tolerance", "error", "runs", "layers")
        }


def study(
    run: Callable[[Any], object],
    network: object,
    batches: Sequence[object],
    dtype: DtypeLike,
    tolerance: float,
    measure: Callable[[Any, Any], object] | None,
) -> Float8Study:
    """Return the study of `unamp.tune` for a dtype of float8.

    The arguments are those of `unamp.tune`, and are checked. Each layer is tried alone. Then as
    many as possible are tried together, without the worst ones.

    Raises:
        ValueError: where two float32 runs differ, or no layer multiplies matrices.
        NotExpressible: where the framework's adapter cannot compute a layer from float8.
    """
    subject = Subject(run, network, Policy("O0"), measure)
    first = subject.exact(batches[0])
    subject.learn_layers()
    checks.check_repeatable(subject, first, subject.exact(batches[0]), tolerance)
    references = [first[0], *(subject.exact(batch)[0] for batch in batches[1:])]
    return _Study(subject, shadow_dtype(dtype), batches, references).result(tolerance)


class _Study:
    """The runs of a study.

    Args:
        subject: the network and the function that runs it.
        dtype: the dtype of the factors.
        batches: the batches.
        references: the results of each batch in float32.
    """

    def __init__(
        self, subject: Subject, dtype: str, batches: Sequence[object], references: Sequence[object]
    ) -> None:
        self._subject, self._dtype = subject, dtype
        self._batches, self._references = batches, references
        self._paths: dict[str, set[str]] = {}

    def result(self, tolerance: float) -> Float8Study:
        """Return the study."""
        layers = self._layers()
        tried = [
            each if each.why else each._replace(alone=self._error([each.layer])) for each in layers
        ]
        ranked = sorted(
            (each for each in tried if not each.why), key=lambda each: each.alone or 0.0
        )
        count, error = self._most([each.layer for each in ranked], tolerance)
        stay = {each.layer for each in ranked[count:]}
        found = [
            each._replace(why=_beyond(each, tolerance)) if each.layer in stay else each
            for each in tried
        ]
        return Float8Study(self._dtype, tolerance, error, found, self._subject.runs)

    def _layers(self) -> list[Float8Layer]:
        """Return the layers that multiply matrices, with their own errors.

        Raises:
            ValueError: where no layer multiplies matrices.
            NotExpressible: where the adapter cannot compute a product from float8.
        """
        names, records = self._subject.names, list[OpRecord]()
        for batch in self._batches:
            self._subject.runs += 1
            with trace(shadow=self._dtype) as ran:
                self._subject.run(batch)
            records += ran.records
        found: dict[str, list[OpRecord]] = {}
        for record in records:
            layer = self._subject.place(record).layer
            if record.op in PRODUCTS and layer and record.layer is not None:
                found.setdefault(layer, []).append(record)
                self._paths.setdefault(layer, set()).add(record.layer)
        if not found:
            raise ValueError(
                "no layer of the network multiplies two matrices, so there is nothing for float8"
            )
        left_out = [
            record.shadow.left_out if record.shadow else ""
            for each in found.values()
            for record in each
        ]
        if all(left_out):
            raise NotExpressible(f"no layer of the network can be studied: {left_out[0]}")
        every = sum(_products(record) for record in records) or 1
        return [
            Float8Layer(
                layer,
                _own(each),
                None,
                sum(map(_products, each)) / every,
                _why_not(names.layers[layer], each),
            )
            for layer, each in found.items()
        ]

    def _error(self, layers: Collection[str]) -> float:
        """Return the largest error over the batches, with some layers' products in float8.

        It is infinite where `run` raises.

        Raises:
            NotExpressible: where the adapter computed no product in float8.
        """
        paths = set[str]().union(*(self._paths[layer] for layer in layers))
        with in_float8(self._dtype, paths) as emulation:
            worst = max(
                self._subject.error_under(self._subject.base, (), batch, reference, trace())
                for batch, reference in zip(self._batches, self._references, strict=True)
            )
        if math.isfinite(worst) and not emulation.reached:
            raise NotExpressible(
                f"the adapter for {self._subject.framework()} computes no layer from float8; "
                f"unamp.trace(shadow={self._dtype!r}) shows the error of each product"
            )
        return worst

    def _most(self, ranked: Sequence[str], tolerance: float) -> tuple[int, float]:
        """Return the number of best layers that a tolerance admits together, and their error."""
        low, high, error = 0, len(ranked), 0.0  # `low` layers are within; more than `high` are not
        count = high
        while low < high:
            found = self._error(ranked[:count])
            if found <= tolerance:
                low, error = count, found
            else:
                high = count - 1
            count = (low + high + 1) // 2
        return low, error


def _own(records: Sequence[OpRecord]) -> float:
    return max(
        (record.shadow.error for record in records if record.shadow is not None), default=0.0
    )


def _products(record: OpRecord) -> int:
    work = work_of(record)
    return 0 if work is None else work.products


def _why_not(layer: object, records: Sequence[OpRecord]) -> str:
    """Return the reason why a layer is not tried; empty where it is tried."""
    for record in records:
        if record.shadow is not None and (record.shadow.left_out or record.shadow.overflow):
            return record.shadow.left_out or f"{record.shadow.overflow} numbers overflow"
    sizes = _sizes_of_weight(layer, records)
    if sizes is None:
        return "it has no weight of its own"
    if any(size % _MULTIPLE for size in sizes):
        return f"its weight is {' x '.join(map(str, sizes))}; kernels take multiples of {_MULTIPLE}"
    return ""


def _sizes_of_weight(layer: object, records: Sequence[OpRecord]) -> list[int] | None:
    """Return the sizes of a layer's own weight; None where it has none."""
    weight = next(
        (w for w in (getattr(layer, name, None) for name in ("weight", "kernel")) if w is not None),
        None,
    )
    if weight is not None:
        return [int(size) for size in weight.shape]
    # A layer of JAX is a name that holds nothing. Where a layer's class is the operation, the
    # weight is one of the operation's inputs.
    called = (
        r
        for r in records
        if r.op == "linear" and r.native.partition("(")[0].rpartition(".")[2][:1].isupper()
    )
    shapes = (shape for record in called for shape in record.input_shapes[1:] if len(shape) == 2)
    return next(([size or 0 for size in shape] for shape in shapes), None)


def _beyond(layer: Float8Layer, tolerance: float) -> str:
    alone = (layer.alone or 0.0) > tolerance
    return f"beyond the tolerance {'alone' if alone else 'with the others'}"
