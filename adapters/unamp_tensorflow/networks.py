"""Keras models that compute under a policy by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import tensorflow as tf

from unamp.networks import returns_float32
from unamp.policy import Policy
from unamp.regions import policy_region
from unamp_tensorflow.casting import cast, convert
from unamp_tensorflow.spellings import keras_in_use
from unamp_tensorflow.state import DTYPES, FLOAT32

if TYPE_CHECKING:
    from unamp_tensorflow.state import Value


def is_network(value: object) -> bool:
    """Return whether a value is a Keras model."""
    return keras_in_use() and isinstance(value, tf.keras.Model)


def wrap(network: tf.keras.Model, policy: Policy) -> tf.keras.Model:
    """Return a Keras model that calls another one under a policy; see `unamp.adapter.Adapter.wrap`.

    The two share variables, so training one trains the other. The new model can be compiled, fitted
    and saved.
    """
    return _model_class()(network, policy)


@cache
def _model_class() -> type:
    # Made when first needed: its base class is Keras's, which a program may import late.
    keras = tf.keras

    @keras.utils.register_keras_serializable("unamp")
    class UnderPolicy(tf.keras.Model):  # type: ignore[misc] # Keras comes without types
        def __init__(self, network: tf.keras.Model, policy: Policy, **rest: Any) -> None:
            super().__init__(**rest)
            self.network = network
            self.policy = policy

        def call(self, inputs: Value, training: bool | None = None, **rest: Any) -> Value:
            if self.policy.level in ("O2", "O3"):
                inputs = convert(cast, DTYPES[self.policy.dtype], inputs)
            with policy_region(self.policy, framework="tensorflow"):
                result = self.network(inputs, training=training, **rest)
            return convert(cast, FLOAT32, result) if returns_float32(self.policy) else result

        def get_config(self) -> dict[str, Any]:
            network = keras.utils.serialize_keras_object(self.network)
            return {**super().get_config(), "network": network, "policy": self.policy.to_data()}

        @classmethod
        def from_config(
            cls, config: dict[str, Any], custom_objects: Mapping[str, object] | None = None
        ) -> Self:
            network = keras.utils.deserialize_keras_object(
                config.pop("network"), custom_objects=custom_objects
            )
            return cls(network, Policy.from_data(config.pop("policy")), **config)

    return UnderPolicy
