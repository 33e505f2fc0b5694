"""Data for docs/training.md, in the working directory."""

import json
from pathlib import Path


def write(name, records):
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))


chats = [
    {"messages": [{"role": "user", "content": f"add {n}"}, {"role": "assistant", "content": f"the user {n}"}]}
    for n in range(12)
]
write("text.jsonl", [{"text": f"the assistant answers {n}"} for n in range(40)])
write("held_out.jsonl", [{"text": f"the user asks {n}"} for n in range(4)])
write("chat.jsonl", chats)
write("pairs.jsonl", [{"prompt": f"add {n}", "chosen": "the answer", "rejected": "to"} for n in range(12)])
write(
    "tasks.jsonl",
    [
        {"prompt": "the user", "choices": [" asks", " adds"], "answer": 0},
        {"messages": [{"role": "user", "content": "1 + 1?"}], "answer": "2"},
    ],
)
