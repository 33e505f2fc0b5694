"""One example for each verb, printed at the end of its help page; `tests/cli/test_examples.py` runs them.

The names stand for files of a fresh user: the model `demo`, `chat.jsonl`, `text.txt`, `pairs.jsonl`, `tasks.jsonl`, and
a job that is called JOB here.
"""

EXAMPLES: dict[str, str] = {
    "rondo up": "rondo up --port 8001",
    "rondo serve": "rondo serve demo --port 8001 --max-model-len 1k",
    "rondo demo": "rondo demo --task sort --no-serve",
    "rondo train pretrain": "rondo train pretrain --model demo --data text.txt --steps 200",
    "rondo train sft": "rondo train sft --model demo --data chat.jsonl --lora --lr 2e-4",
    "rondo train preference": "rondo train preference --model demo --data pairs.jsonl --lr 1e-6",
    "rondo train reward": "rondo train reward --model demo --data pairs.jsonl --steps 50",
    "rondo evaluate": "rondo evaluate demo --data chat.jsonl --tasks tasks.jsonl",
    "rondo rl": "rondo rl --model demo --task reverse --steps 20",
    "rondo rl rollouts": "rondo rl rollouts JOB --sort reward --limit 5",
    "rondo rl alarms": "rondo rl alarms JOB",
    "rondo rl plot": "rondo rl plot JOB reward",
    "rondo plan": "rondo plan llama-3-8b --gpu h100 --gpus 8",
    "rondo data prepare": "rondo data prepare text.txt --tokenizer demo --out shards",
    "rondo data inspect": "rondo data inspect shards --check",
    "rondo job list": "rondo job list",
    "rondo job show": "rondo job show JOB",
    "rondo job metrics": "rondo job metrics JOB loss",
    "rondo model new": "rondo model new mine --preset tiny",
    "rondo model import": "rondo model import exported copy",
    "rondo model export": "rondo model export demo exported",
    "rondo model quantize": "rondo model quantize demo --method int8",
    "rondo model inspect": "rondo model inspect demo",
    "rondo model list": "rondo model list",
    "rondo db upgrade": "rondo db upgrade",
    "rondo db backup": "rondo db backup rondo-backup.db",
    "rondo db check": "rondo db check",
    "rondo db restore": "rondo db restore rondo-backup.db",
    "rondo bench serve": "rondo bench serve --base-url http://127.0.0.1:8001 --num-prompts 20",
    "rondo bench throughput": "rondo bench throughput demo --num-prompts 8 --output-len 16",
    "rondo bench latency": "rondo bench latency demo --batch-size 1 --output-len 16",
    "rondo doctor": "rondo doctor",
    "rondo config": "rondo config --explain train.lr",
    "rondo completion": "rondo completion bash > ~/.rondo/completion.bash",
}
