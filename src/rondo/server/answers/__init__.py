"""From prompts to response bodies: rendering and truncation of prompts, parsing of reasoning and tool calls, streaming.

`answering.py` is the common path of chat and completions; `replies.py` separates content, reasoning and tool calls.
"""
