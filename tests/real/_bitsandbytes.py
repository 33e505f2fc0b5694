"""QLoRA by bitsandbytes and PEFT on one row of tokens: run with the interpreter of their environment. Reads {"base",
"adapter", "ours", "out", "tokens"} and writes the loss and logits; `out` has the gradients, and the model in 4 bits."""

import json
import sys
from typing import Any

import torch
from bitsandbytes.nn import Linear4bit
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def exact(model: Any) -> Any:
    """Without the layout of CPUs with bf16 instructions, which rounds scales and inputs to bf16."""
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.compute_dtype, module.support_avx512bf16_for_cpu = torch.float32, False
    return model


def quantized(folder: str) -> Any:
    """The model in `folder`, quantized unless it is already."""
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    return exact(
        AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=settings, dtype=torch.float32, device_map="cpu"
        )
    )


asked = json.load(sys.stdin)
tokens = torch.tensor([asked["tokens"]])
model = quantized(asked["base"])
model.save_pretrained(f"{asked['out']}/model")
plain = model(tokens, use_cache=False).logits[0]
read = exact(AutoModelForCausalLM.from_pretrained(asked["ours"], dtype=torch.float32, device_map="cpu"))
theirs_of_ours = read(tokens, use_cache=False).logits[0]
tuned = PeftModel.from_pretrained(model, asked["adapter"], is_trainable=True)
loss = tuned(tokens, labels=tokens, use_cache=False).loss
loss.backward()
gradients = {name: p.grad for name, p in tuned.named_parameters() if p.grad is not None}
save_file(gradients, f"{asked['out']}/gradients.safetensors")
print(json.dumps({"loss": loss.item(), "logits": plain.tolist(), "logits of ours": theirs_of_ours.tolist()}))
