"""Dtype policies: Keras' own where Keras is imported, else values."""

from __future__ import annotations

from typing import Any

from unamp.dialects._in_use import framework_in_use
from unamp.errors import NotExpressible

_MIXED = {"mixed_float16": ("float16", "float32"), "mixed_bfloat16": ("bfloat16", "float32")}
_DTYPES = frozenset(
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 "
    "float8_e4m3fn float8_e5m2 "
    "complex64 complex128".split()
)


class KerasOwn(type):
    """The metaclass of classes that count Keras' own objects of the same name as instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        keras = framework_in_use("keras")
        own = () if keras is None else getattr(keras.mixed_precision, cls.__name__)
        return isinstance(instance, own) or super().__instancecheck__(instance)


class DTypePolicy(metaclass=KerasOwn):
    """`keras.DTypePolicy`. Where Keras is imported, the class returns Keras' own.

    Args:
        name: ``"mixed_float16"``, ``"mixed_bfloat16"`` or a dtype's name; None: the global one's.

    Raises:
        TypeError: where the name is no string.
        ValueError: for another name.
    """

    def __new__(cls, name: str | None = None) -> Any:
        """Return Keras' own policy, or a new one of this class."""
        keras = framework_in_use("keras")
        return super().__new__(cls) if keras is None else keras.mixed_precision.DTypePolicy(name)

    def __init__(self, name: str | None = None) -> None:
        self._name = "float32" if name is None else name
        self._compute_dtype, self._variable_dtype = _parsed(self._name)

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def compute_dtype(self) -> str:
        """The dtype that layers compute in."""
        return self._compute_dtype

    @property
    def variable_dtype(self) -> str:
        """The dtype of layers' variables."""
        return self._variable_dtype

    @property
    def quantization_mode(self) -> None:
        """None: quantised policies are Keras' own."""
        return None

    def get_config(self) -> dict[str, str]:
        """Return the arguments from which `from_config` makes an equal policy."""
        return {"name": self._name}

    @classmethod
    def from_config(cls, config: dict[str, str]) -> Any:
        """Return a policy from `get_config`."""
        return cls(**config)

    def __repr__(self) -> str:
        return f'<DTypePolicy "{self._name}">'

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.name == self._name

    def __hash__(self) -> int:
        return hash(self._name)


def dtype_policy() -> Any:
    """Return the global policy: Keras' own; ``"float32"`` where Keras is not imported."""
    keras = framework_in_use("keras")
    return DTypePolicy("float32") if keras is None else keras.mixed_precision.dtype_policy()


def set_dtype_policy(policy: Any) -> None:
    """Set the policy that new layers of Keras get.

    Args:
        policy: a policy or its name.

    Raises:
        TypeError, ValueError: for a value that is no policy.
        NotExpressible: for a policy other than ``"float32"`` where Keras is not imported: nothing
            else has a global policy.
    """
    keras = framework_in_use("keras")
    if keras is not None:
        # A policy that was made before Keras was imported is no object of Keras'.
        keras.mixed_precision.set_dtype_policy(
            policy.name if type(policy) is DTypePolicy else policy
        )
        return
    made = policy if isinstance(policy, DTypePolicy) else _made(policy)
    if made.name != "float32":
        low = made.compute_dtype if made.name in _MIXED else "bfloat16"
        raise NotExpressible(
            f"the policy {made.name!r} would govern Keras' layers, and Keras is not imported: "
            "import it before, or open a region around what computes: "
            f"`with unamp.autocast(level='O2', dtype={low!r}):`"
        )


def _made(policy: object) -> DTypePolicy:
    if not isinstance(policy, str):
        raise ValueError(
            "Invalid `policy` argument. Expected the string name of a policy (such as "
            "'mixed_float16') or a `DTypePolicy` instance. Received: "
            f"policy={policy} (of type {type(policy)})"
        )
    return DTypePolicy(policy)


def _parsed(name: object) -> tuple[str, str]:
    if not isinstance(name, str):
        raise TypeError(
            "'name' must be a string, such as 'mixed_float16'. Received: "
            f"name={name} (of type {type(name)})"
        )
    if name in _MIXED:
        return _MIXED[name]
    if name not in _DTYPES:
        raise ValueError(
            f"Cannot convert {name!r} to a mixed precision DTypePolicy. Valid policies include "
            "'mixed_float16', 'mixed_bfloat16', and the name of any float dtype such as 'float32'."
        )
    return name, name
