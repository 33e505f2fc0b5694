"""Routes of the durable queue.

queue.py           groups of requests, results, dead letters, summary
leases.py          workers: leases, heartbeats, results, requests handed back
generate.py        the generate API: prompts and their results
generate_files.py  the generate API: files of prompts, and the browser of submissions
generate_work.py   the generate API: ScalarLM's routes for workers
"""
