"""Types of unamp's arguments, for annotations in code that calls it.

They are for type checkers: at run time every argument is checked by its value, and the error says
what is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, TypeAlias

__all__ = [
    "DeviceLike",
    "DtypeLike",
    "DtypeName",
    "DtypeObject",
    "Float8Name",
    "Level",
    "OperationLike",
    "OperationsLike",
    "PresetName",
    "TorchDtype",
]

#: The levels of a policy; see `unamp.LEVELS`.
Level: TypeAlias = Literal["O0", "OD", "O1", "O2", "O3"]

# fmt: off
#: The names of presets, and of their versions; see `unamp.PRESETS`.
PresetName: TypeAlias = Literal[
    "unamp", "torch-cuda", "torch-cpu", "torch-mps", "paddle", "mindspore", "tensorflow", "apex",
    "none", "native",
    "torch-cuda@2.8", "torch-cuda@2.10", "torch-cuda@2.11", "torch-cuda@2.12", "torch-cuda@2.13",
    "torch-cuda@2.14", "torch-cuda@2.15",
    "torch-cpu@2.8", "torch-cpu@2.10", "torch-cpu@2.11", "torch-cpu@2.12", "torch-cpu@2.13",
    "torch-cpu@2.14", "torch-cpu@2.15",
    "torch-mps@2.8", "torch-mps@2.10", "torch-mps@2.11", "torch-mps@2.12", "torch-mps@2.13",
    "torch-mps@2.14", "torch-mps@2.15",
    "paddle@3.1", "paddle@3.2", "paddle@3.3",
    "mindspore@2.8", "mindspore@2.9", "mindspore@2.10",
    "tensorflow@2.17", "tensorflow@2.18", "tensorflow@2.19", "tensorflow@2.20",
    "tensorflow@2.21",
]
# fmt: on

#: The names of a policy's dtype; see `unamp.dtypes.POLICY_DTYPES`.
DtypeName: TypeAlias = Literal["float16", "bfloat16", "float32"]

#: The names of the float8 formats that `unamp.tune` studies; see `unamp.dtypes.FLOAT8`.
Float8Name: TypeAlias = Literal[
    "float8_e4m3", "float8_e4m3_rows", "float8_e5m2", "float8_e5m2_rows"
]


class TorchDtype(Protocol):
    """A dtype of PyTorch's."""

    @property
    def is_floating_point(self) -> bool: ...  # noqa: D102
    @property
    def is_complex(self) -> bool: ...  # noqa: D102
    @property
    def itemsize(self) -> int: ...  # noqa: D102


class DtypeObject(Protocol):
    """A dtype that carries its name: NumPy's, ml_dtypes' and TensorFlow's."""

    @property
    def name(self) -> str: ...  # noqa: D102


# the dtypes of NumPy and ml_dtypes are also written as the classes of their scalars
class _Scalar(Protocol):
    @property
    def dtype(self) -> Any: ...
    @property
    def itemsize(self) -> int: ...


#: A dtype as every argument for one takes it. A name may be any string: it often comes from a
#: setting, and has more spellings (``"bf16"``, ``"torch.bfloat16"``) than a type can list.
DtypeLike: TypeAlias = str | TorchDtype | DtypeObject | type[_Scalar]


class _TorchDevice(Protocol):
    @property
    def type(self) -> str: ...
    @property
    def index(self) -> int: ...


class _JaxDevice(Protocol):
    @property
    def platform(self) -> str: ...


class _TensorFlowDevice(Protocol):  # physical and logical ones, and `DeviceSpec`
    @property
    def device_type(self) -> str | None: ...


class _PaddlePlace(Protocol):
    def is_cpu_place(self) -> bool: ...


#: A device as every argument for one takes it: a word (``"gpu"``, ``"cuda:0"``, ``"mps"``), or a
#: framework's own object.
DeviceLike: TypeAlias = str | _TorchDevice | _JaxDevice | _TensorFlowDevice | _PaddlePlace

#: An operation as every argument for one takes it: a name in any spelling, or the framework's own
#: function, layer class or primitive, all of which can be called.
OperationLike: TypeAlias = str | Callable[..., Any]

#: A list of operations as `allow` and `deny` take it; a single entry may stand alone.
OperationsLike: TypeAlias = OperationLike | Iterable[OperationLike]
