"""Routes of the engine server, each a thin translation between an HTTP body and the engine.

OpenAI's routes: chat, completions, responses, embeddings. vLLM's: scoring, tokenize, adapters, lifecycle, weights.
"""
