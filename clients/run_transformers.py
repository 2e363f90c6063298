"""transformers: training steps of a small Llama and a small BERT with random weights."""

import torch
from client import measure
from on_torch import native, step_of
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}


def build(region):
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**SIZES))
    bert = BertForMaskedLM(
        BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    )
    ids = torch.randint(0, 1000, (4, 64))
    models = torch.nn.ModuleList([llama, bert])
    return step_of(
        models, region, lambda: sum(model(input_ids=ids, labels=ids).loss for model in models)
    )


measure(build, lambda: build(native))
