"""Talk to a server, answer by answer as it is made.

    python examples/chat.py                      a conversation; an empty line ends it
    python examples/chat.py "reverse PLANET"     one question
    python examples/chat.py --forget             each question alone: the demo model knows no longer conversations

The server is RONDO_BASE_URL, or the gateway of `rondo up` at http://127.0.0.1:8000.
"""

import argparse
import sys
from collections.abc import Iterator

import rondo
from rondo.base.errors import RondoError


def questions(given: str | None) -> Iterator[str]:
    if given is not None:
        yield given
        return
    while line := input("> ").strip():
        yield line


def answer(client: rondo.Client, messages: list[dict[str, str]], temperature: float) -> str:
    """Prints the answer as it comes, and returns the whole of it."""
    text = ""
    for event in client.stream_chat(messages, temperature=temperature):
        for choice in event["choices"]:
            piece = choice["delta"].get("content") or ""
            print(piece, end="", flush=True)
            text += piece
    print()
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Talk to a server.")
    parser.add_argument("question", nargs="?")
    parser.add_argument("--url", help="the server's address")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token (0)")
    parser.add_argument("--forget", action="store_true", help="each question alone")
    given = parser.parse_args()
    messages: list[dict[str, str]] = []
    try:
        with rondo.Client(given.url) as client:
            for question in questions(given.question):
                messages = [*([] if given.forget else messages), {"role": "user", "content": question}]
                messages.append({"role": "assistant", "content": answer(client, messages, given.temperature)})
    except RondoError as error:
        sys.exit(f"error: {error}")
    except EOFError:
        pass


if __name__ == "__main__":
    main()
