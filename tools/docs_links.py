"""MkDocs hook: links from the manual to other files of the repository, such as `../examples/chat.py`.

The site contains only `docs/`. With `repo_url` such a link leads to the repository; without it the path stays as text.
A link to a missing file fails the build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    root = Path(config.config_file_path).parent
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def replaced(found: re.Match[str]) -> str:
        text, link, anchor = found.group(1), found.group(2), found.group(3) or ""
        path = posixpath.normpath(posixpath.join(folder, link))
        if path.startswith("docs/"):
            return found.group()
        if path.startswith("..") or not (root / path).exists():
            raise PluginError(f"{page.file.src_uri}: {link} is not a file of the repository.")
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})"
        return text if path in text else f"{text} (`{path}`)"

    return LINK.sub(replaced, markdown)
