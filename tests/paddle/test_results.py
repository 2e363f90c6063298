"""`float32_results` on Paddle widens a function's results, eager and compiled both ways."""

from __future__ import annotations

from functools import partial

import paddle
from narrowed import test_float32_leaves_a_function_that_computes_low  # noqa: F401

WAYS = [lambda f: f, *(partial(paddle.jit.to_static, full_graph=whole) for whole in (False, True))]
