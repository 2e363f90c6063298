"""The work of a record is counted, or is unknown, in cases that no framework's test reaches."""

from __future__ import annotations

import pytest

from unamp import OpRecord, Rule
from unamp.tracing import Work, share, total_work, work_of
from unamp.tracing.products import COUNTED
from unamp.vocabulary import vocabulary

TF_PRIMITIVE = {"framework": "tensorflow", "native": "Conv2DBackpropInput"}


def record(
    op: str,
    inputs: tuple[tuple[int | None, ...], ...],
    out: tuple[int | None, ...],
    **fields: object,
) -> OpRecord:
    dtypes = ("float32",) * len(inputs)
    made = OpRecord(
        op, op, Rule.UNTOUCHED, dtypes, "float32", "float32", input_shapes=inputs, output_shape=out
    )
    return made._replace(**fields)  # type: ignore[arg-type]


def products(op: str, *shapes: tuple[int | None, ...], **fields: object) -> int | None:
    work = work_of(record(op, shapes[:-1], shapes[-1], **fields))
    return None if work is None else work.products


def test_every_rule_is_of_an_operation() -> None:
    assert set(COUNTED) <= set(vocabulary())
    groups = {vocabulary()[op].group for op in COUNTED}
    assert groups == {"matmul", "conv", "attention", "recurrent", "quantize"}


@pytest.mark.parametrize(
    ("op", "shapes", "fields", "expected"),
    [
        ("conv_tbc", ((9, 2, 4), (3, 4, 6), (6,), (7, 2, 6)), {}, 7 * 2 * 6 * 3 * 4),
        (
            "deform_conv2d",
            ((2, 4, 9, 9), (2, 18, 7, 7), (6, 4, 3, 3), (2, 6, 7, 7)),
            {},
            2 * 6 * 49 * 4 * 9,
        ),
        (
            "conv_transpose2d",
            ((3, 3, 6, 4), (2, 9, 9, 4), (2, 11, 11, 6)),
            TF_PRIMITIVE,
            2 * 4 * 81 * 6 * 9,
        ),
        (
            "depthwise_conv2d",
            ((2, 4, 9, 9), (8, 1, 3, 3), (2, 8, 7, 7)),
            {"framework": "paddle"},
            2 * 8 * 49 * 9,
        ),
        (
            "scaled_dot_product_attention",
            ((4, 8), (6, 8), (6, 8), (4, 8)),
            {"framework": "paddle"},
            4 * 6 * 16,
        ),
        (
            "multi_head_attention",
            ((2, 5, 8), (2, 5, 8), (24, 8), (24,), (8, 8), (8,), (2, 5, 8)),
            {},
            10 * (256 + 2 * 5 * 8),
        ),
        (
            "multi_head_attention",
            ((5, 2, 8), (8, 32), (5, 2, 8)),
            {"framework": "mindspore"},
            10 * (256 + 2 * 5 * 8),
        ),
        ("fused_feedforward", ((2, 5, 8), (8, 32), (32,), (32, 8), (2, 5, 8)), {}, 10 * 512),
        ("linalg_multi_dot", ((3,), (3, 4), (4,), ()), {}, 12 + 4),
        ("linalg_vecdot", ((5, 3), (3,), (5,)), {}, 15),
        ("addmv", ((4,), (4, 5), (5,), (4,)), {}, 20),
        ("addr", ((4, 5), (4,), (5,), (4, 5)), {}, 20),
        ("einsum", ((4, 5), (5, 6), (4, 6)), {"equation": "ij,jk"}, 120),
        ("einsum", ((4, 4), (4,)), {"equation": "ii->i"}, 0),
        ("sum", ((4, 4), (4,)), {}, 0),
        ("linear", ((0, 5), (6, 5), (0, 6)), {}, 0),
    ],
)
def test_products(
    op: str, shapes: tuple[tuple[int, ...], ...], fields: dict[str, object], expected: int
) -> None:
    assert products(op, *shapes, **fields) == expected


@pytest.mark.parametrize(
    ("op", "shapes", "fields"),
    [
        ("linear", ((None, 5), (6, 5), (None, 6)), {}),
        ("linear", ((4, 5), (4, 6)), {}),  # the weight is missing
        ("conv2d", ((2, 4, 9, 9), (2, 6, 7, 7)), {}),
        ("einsum", ((4, 5), (5, 6), (4, 6)), {}),  # no equation
        ("einsum", ((4, 5), (5, 6), (4, 6)), {"equation": "ijk,jk->ik"}),
        ("relu", ((4, None), (4, None)), {}),
        ("relu", ((4, 5), (4, 5)), {"input_shapes": ()}),  # from an older version's trace
        ("relu", ((4, 5), (4, 5)), {"output_shape": None}),
    ],
)
def test_what_is_not_known_is_not_counted(
    op: str, shapes: tuple[tuple[int | None, ...], ...], fields: dict[str, object]
) -> None:
    assert products(op, *shapes, **fields) is None


def test_bytes_are_those_that_a_kernel_moves() -> None:
    low = record("relu", ((4, 5),), (4, 5), compute="bfloat16", output="bfloat16")
    assert work_of(low) == Work(0, 2 * 20 + 2 * 20)
    assert work_of(low._replace(output="float32")) == Work(0, 2 * 20 + 4 * 20)
    assert work_of(low._replace(inputs=("float64",), output="float64", compute="float64")) == Work(
        0, 16 * 20
    )
    # rows that are not looked up are not read
    assert work_of(record("embedding", ((1000, 8),), (3, 8))) == Work(0, 2 * 4 * 24)
    assert (
        work_of(
            low._replace(inputs=(), input_shapes=(), compute=None, output=None, output_shape=None)
        )
        == Work()
    )


def test_a_share_is_half_of_the_products_and_half_of_the_bytes() -> None:
    linear, relu = record("linear", ((4, 5), (6, 5)), (4, 6)), record("relu", ((4, 6),), (4, 6))
    whole = total_work([linear, relu, record("relu", ((None,),), (None,))])
    assert whole == Work(120, 4 * (20 + 30 + 24) + 4 * 48)
    parts = [share(total_work([each]), whole) for each in (linear, relu)]
    assert parts == [(1 + 296 / 488) / 2, 192 / 488 / 2]
    assert sum(parts) == 1.0
    assert share(Work(0, 3), Work(0, 4)) == 0.75
    assert share(Work(), Work()) == 0.0
