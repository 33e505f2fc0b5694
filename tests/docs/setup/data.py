"""Data for docs/data.md, in the working directory."""

import json
from pathlib import Path

Path("more").mkdir()
for name in ("text.jsonl", "more/part.jsonl", "books.jsonl"):
    Path(name).write_text(
        "".join(json.dumps({"text": f"the assistant answers {n}"}) + "\n" for n in range(40))
    )
