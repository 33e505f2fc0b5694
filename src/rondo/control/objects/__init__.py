"""Objects of OpenAI's API that the gateway stores for their owners: files, uploads, batches. Read `files.py` first."""
