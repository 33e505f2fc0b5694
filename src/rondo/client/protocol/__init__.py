"""OpenAI's HTTP bodies: chat, completions, the Responses API, tools and structured output.

Each field is declared once, with its limits. An unknown field is an error that names the field; `refusals.py` turns
pydantic's errors into these messages. Read `openai.py` first.
"""
