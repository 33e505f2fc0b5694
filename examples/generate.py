"""Generate without a server: several samples of each prompt, with the log-probability of every token.

    python examples/generate.py demo "reverse PLANET" "reverse TREE"

The model is a name from `rondo model list`, or a folder in Hugging Face layout. Prompts go through its chat template;
--raw continues them as they are.
"""

import argparse

import rondo


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate without a server.")
    parser.add_argument("model", help="a name, or a folder")
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--samples", type=int, default=2, help="answers to each prompt (2)")
    parser.add_argument("--max-tokens", type=int, default=32, help="longest answer, in tokens (32)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest token (1)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same answers (0)")
    parser.add_argument("--raw", action="store_true", help="no chat template")
    given = parser.parse_args()

    sampling = rondo.SamplingParams(
        n=given.samples,
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        seed=given.seed,
        logprobs=0,  # of the sampled tokens; k adds the k likeliest alternatives
    )
    # All prompts and samples run together, and none changes another's tokens.
    llm = rondo.LLM(given.model)
    if given.raw:
        requests = llm.generate(given.prompts, sampling)
    else:
        requests = llm.chat([[{"role": "user", "content": text}] for text in given.prompts], sampling)
    for text, request in zip(given.prompts, requests, strict=True):
        print(text)
        for sample in request.outputs:
            logprob = sum(sample.logprobs or [])
            print(f"  {sample.text!r}  log-probability {logprob:.2f}, {sample.finish_reason}")


if __name__ == "__main__":
    main()
