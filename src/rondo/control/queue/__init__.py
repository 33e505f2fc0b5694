"""The durable queue. Start reading at `queue.py`; workers use `leases.py`."""
