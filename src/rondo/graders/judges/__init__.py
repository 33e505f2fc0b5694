"""LLM as a judge: OpenAI's `score_model` and `label_model` graders, through any OpenAI endpoint with retries."""
