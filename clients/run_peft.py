"""peft: training steps of low-rank adapters in a small Llama."""

import torch
from client import measure
from on_torch import native, step_of
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def build(region):
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    model = get_peft_model(
        LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=1000)),
        LoraConfig(r=8, target_modules=["q_proj", "v_proj"]),
    )
    ids = torch.randint(0, 1000, (4, 64))
    return step_of(model, region, lambda: model(input_ids=ids, labels=ids).loss)


measure(build, lambda: build(native))
