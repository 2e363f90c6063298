"""Rules for layers, and the tuner, on a network of flax.linen: BERT of Hugging Face's transformers.

`pip install 'transformers<5'`; version 5 has no flax. The weights are random, so nothing is
downloaded.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from transformers import BertConfig, FlaxBertModel

import unamp

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def main() -> None:
    """Print the effects of rules for layers, and the findings of the tuner."""
    model = FlaxBertModel(BertConfig(vocab_size=64, max_position_embeddings=32, **SIZES))
    # a module of linen has layers with its variables
    network = model.module.bind({"params": model.params})
    batches = list(jax.random.randint(jax.random.key(0), (4, 2, 8), 0, 64))

    @jax.jit
    def forward(parameters: Any, ids: Any) -> Any:
        return model(ids, params=parameters).last_hidden_state

    def run(ids: Any) -> Any:
        return forward(model.params, ids)

    rules = {"encoder.layer.*.output.dense": "float32", "pooler": "float32"}
    with unamp.layer_policies(network, rules) as ruled, unamp.autocast(dtype="bfloat16"):
        print(*ruled.layers, sep="\n")
        with unamp.trace() as trace:
            run(batches[0])
        print(
            *(f"{each.layer}: {each.compute}" for each in trace.records if each.op == "linear"),
            sep="\n",
        )
        gradients = jax.grad(lambda parameters: jnp.mean(forward(parameters, batches[0]) ** 2))(
            model.params
        )
    print(f"gradients: {', '.join({str(each.dtype) for each in jax.tree.leaves(gradients)})}")

    # its product is beyond float16
    model.params["encoder"]["layer"]["0"]["output"]["dense"]["kernel"] *= 1e7
    for by in ("place", "layer", "operation"):
        tuned = unamp.tune(run, network, batches, tolerance=1e-2, by=by, progress=False)
        print(f"by={by!r}", tuned.table(), sep="\n", flush=True)
        with tuned.region(network):
            print(f"finite: {jnp.isfinite(run(batches[0])).all()}")


if __name__ == "__main__":
    main()
