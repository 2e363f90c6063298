"""Rules for layers, and the tuner, on a network of equinox: the vision transformer of equimo.

`pip install equimo`. The weights are random, so nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from equimo.models import VisionTransformer

import unamp

SIZES = {
    "img_size": 16,
    "in_channels": 3,
    "dim": 32,
    "patch_size": 8,
    "num_heads": 4,
    "depths": [2],
    "num_classes": 10,
}


@eqx.filter_jit
def forward(network: Any, images: Any) -> Any:
    """Return the logits of a batch."""
    return jax.vmap(network)(images)


def main() -> None:
    """Print the effects of rules for layers, and the findings of the tuner."""
    made = VisionTransformer(reg_tokens=0, key=jax.random.key(0), **SIZES)
    network = eqx.nn.inference_mode(made)
    batches = list(jax.random.normal(jax.random.key(1), (4, 2, 3, 16, 16)))

    rules = {"**.mlp.fc2": "float32", "**:LayerNorm": "float32", "head": "float32"}
    with unamp.layer_policies(network, rules) as ruled, unamp.autocast(dtype="bfloat16"):
        print(*ruled.layers, sep="\n")
        with unamp.trace() as trace:
            forward(network, batches[0])
        print(
            *(f"{each.layer}: {each.compute}" for each in trace.records if each.op == "linear"),
            sep="\n",
        )
        gradients = eqx.filter_grad(lambda network: jnp.mean(forward(network, batches[0]) ** 2))(
            network
        )
    print(f"gradients: {', '.join({str(each.dtype) for each in jax.tree.leaves(gradients)})}")

    def weight(network: Any) -> Any:
        return network.blocks[0].blocks[1].mlp.fc2.weight

    large = eqx.tree_at(weight, network, weight(network) * 1e6)  # its product is beyond float16
    for by in ("place", "layer", "operation"):
        tuned = unamp.tune(
            lambda images: forward(large, images),
            large,
            batches,
            tolerance=1e-2,
            by=by,
            progress=False,
        )
        print(f"by={by!r}", tuned.table(), sep="\n", flush=True)
        with tuned.region(large):
            print(f"finite: {jnp.isfinite(forward(large, batches[0])).all()}")


if __name__ == "__main__":
    main()
