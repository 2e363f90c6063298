"""The names of a framework's own types, which only its adapter knows.

A value that is only passed on or looked at is an `object`; these names are for values that are
computed with, or whose attributes are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

#: One of the framework's tensors.
Tensor: TypeAlias = Any

#: One of the framework's dtypes, as the framework has it.
Dtype: TypeAlias = Any

#: Returns a tensor in a dtype.
Cast: TypeAlias = Callable[[Tensor, Dtype], Tensor]

#: The numbers of a tensor as one row of float64: a NumPy array, or a tensor that is indexed and
#: computed with like one.
Row: TypeAlias = Any

#: One of the framework's layers or networks.
Layer: TypeAlias = Any

#: One of the framework's optimizers.
Optimizer: TypeAlias = Any

#: One of Keras' variables, whatever it computes with.
Variable: TypeAlias = Any
