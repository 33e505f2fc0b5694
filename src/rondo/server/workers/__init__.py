"""Work with limits that must not block the event loop: large request bodies and chat templates, in a child process that
can be stopped. Read `worker.py` first.
"""
