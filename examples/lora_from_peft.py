"""Take a LoRA adapter that PEFT trained: try it on its base, then merge the two into a model that can be served.

    python examples/lora_from_peft.py BASE ADAPTER --prompt "Hello" --keep-as NAME
    rondo serve NAME

BASE is a name from `rondo model list` or a folder, ADAPTER the folder that PEFT's `save_pretrained` wrote.
"""

import argparse

import rondo
from rondo.models import Decoder, load
from rondo.models.adapters import load_lora, merge
from rondo.models.store import create_model, resolve
from rondo.text.tokenizer import Tokenizer


def say(model: Decoder, tokenizer: Tokenizer, prompt: str, max_tokens: int) -> str:
    sampling = rondo.SamplingParams(max_tokens=max_tokens, temperature=0)
    (request,) = rondo.LLM(model, tokenizer).generate(prompt, sampling)
    return request.outputs[0].text


def main() -> None:
    parser = argparse.ArgumentParser(description="Try and merge a LoRA adapter.")
    parser.add_argument("base", help="a name, or a folder")
    parser.add_argument("adapter", help="the adapter's folder")
    parser.add_argument("--prompt", default="Hello", help="what to continue (Hello)")
    parser.add_argument("--max-tokens", type=int, default=20, help="how far (20)")
    parser.add_argument("--keep-as", metavar="NAME", help="keep the merged model under this name")
    given = parser.parse_args()

    folder = resolve(given.base)
    model, tokenizer = load(folder), Tokenizer.load(folder)
    print(f"base:    {say(model, tokenizer, given.prompt, given.max_tokens)!r}")
    adapter = load_lora(model, given.adapter)
    print(f"adapter: {say(model, tokenizer, given.prompt, given.max_tokens)!r}")
    print(f"         rank {adapter.spec.r}, over {len(adapter.parts)} linear modules")
    if given.keep_as:
        merge(model)
        print(f"merged:  {create_model(given.keep_as, model, tokenizer=folder, replace=True)}")


if __name__ == "__main__":
    main()
