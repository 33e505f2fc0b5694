"""A policy that learns to use a tool, from nothing: a model whose chat template shows tools, imitation, and reward.

    python examples/calculator.py                    some minutes on a CPU; keeps the result as `calculating`
    rondo rl --model calculating --task calculator   goes on from there

The task asks for products of two numbers, which so small a model cannot work out; a calculator can. What is imitated
calls it half of the time, and guesses in the other half. That calling pays is what the reward teaches.
"""

import argparse
import json
import random

from rondo import models
from rondo.base.storage.files import atomic_dir
from rondo.models.store import place
from rondo.rl.config import RlConfig
from rondo.rl.environments.imitation import conversations
from rondo.rl.loop import Loop
from rondo.rl.tasks.games import GAMES
from rondo.text.bpe import train_bpe
from rondo.text.conversation.messages import adapt_messages
from rondo.train.config import TrainConfig
from rondo.train.learner.learner import Learner
from rondo.train.loop import train
from rondo.train.recipes import sft

GAME = GAMES["calculator"]
TEMPLATE = """\
{%- for tool in tools or [] %}
    {{- '<|im_start|>system\\n' + tool.function.name + ': ' + tool.function.description + '<|im_end|>\\n' }}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""How Hermes and Qwen write calls and their results. A real one also says how a call is written."""


def speaker(source):
    """Calls the calculator or guesses a number; what the calculator said is the answer."""

    def speak(messages):
        asked = messages[-1]
        if asked["role"] == "tool":
            return asked["content"]
        if source.random() < 0.5:
            return str(source.randint(100, 9801))
        sum = asked["content"].removeprefix("work out ")
        function = {"name": "calculate", "arguments": json.dumps({"sum": sum})}
        call = {"id": "call00001", "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    return speak


def make(played, hidden, seed):
    """A tokenizer that has seen conversations as the template writes them, and a model of random weights."""
    letters = train_bpe(["-"], 300, chat_template=TEMPLATE)
    texts = [
        letters.render(adapt_messages(each["messages"], TEMPLATE), each["tools"]) for each in played[:1000]
    ]
    tokenizer = train_bpe(texts, 512, chat_template=TEMPLATE)
    return models.new(config_of(hidden, tokenizer), seed=seed), tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description="Teach a model to use a calculator.")
    parser.add_argument("--hidden", type=int, default=128, help="the model's width (128)")
    parser.add_argument("--conversations", type=int, default=6000, help="to imitate (6000)")
    parser.add_argument("--sft-steps", type=int, default=300, help="steps of imitation (300)")
    parser.add_argument("--rl-steps", type=int, default=25, help="steps of RL (25)")
    parser.add_argument("--prompts", type=int, default=32, help="products an RL step; 8 episodes each (32)")
    parser.add_argument("--eval-prompts", type=int, default=128, help="held-out products (128)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (0)")
    given = parser.parse_args()

    played = conversations(GAME, speaker(random.Random(given.seed)), given.seed, given.conversations)
    model, tokenizer = make(played, given.hidden, given.seed)
    imitation = TrainConfig(
        steps=given.sft_steps,
        lr=2e-3,
        warmup=20,
        betas=(0.9, 0.98),
        tokens_per_step=4096,
        max_length=256,
        seed=given.seed,
    )
    examples = sft.examples(tokenizer, played, imitation.max_length)
    train(Learner(model, imitation), sft.batches(examples, imitation), imitation)

    config = RlConfig(
        steps=given.rl_steps,
        lr=3e-4,
        warmup=5,
        prompts_per_step=given.prompts,
        samples_per_prompt=8,
        eval_prompts=given.eval_prompts,
        seed=given.seed,
    )
    with Loop(model, tokenizer, GAME, config) as loop:
        print(f"after imitation: {loop.evaluate()['pass@1']:.0%} of held-out products are right")
        for step in range(1, config.steps + 1):
            metrics = loop.step()
            if step % 10 == 0 or step == config.steps:
                print(f"step {step}: reward {metrics['reward']:.2f}", flush=True)
        print(f"after reward: {loop.evaluate()['pass@1']:.0%} of held-out products are right")
    with atomic_dir(place("calculating"), replace=True) as folder:
        models.save_into(model, folder)
        tokenizer.save(folder)
    print(f"kept in {place('calculating')}")


def config_of(hidden, tokenizer):
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 512,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": 3,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": hidden // 32,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": hidden**-0.5,
        "eos_token_id": list(tokenizer.eos_ids),
        "pad_token_id": tokenizer.pad_id,
        "torch_dtype": "float32",
    }


if __name__ == "__main__":
    main()
