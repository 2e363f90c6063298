"""Rules for layers: a policy for some layers of a network, without touching the network's code."""

from unamp.layers.applying import LayerPolicies, layer_policies
from unamp.layers.rules import LayerRule, LayerRules

__all__ = ["LayerPolicies", "LayerRule", "LayerRules", "layer_policies"]
