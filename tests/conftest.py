"""For all tests: threads that wait do not starve the servers and processes the tests start."""

from rondo.base.threads import yield_soon

yield_soon()
