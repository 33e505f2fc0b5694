"""Sources of engines beside the configuration. Each one registers its engines with the fleet, and removes engines that
it no longer reports. An unreachable source changes nothing.

    loading.py     the supervisor of `rondo up`, which starts engines with the first request for their model
    discovery.py   settings of discovery, and the task that follows a Kubernetes service or a DNS name
    kubernetes.py  EndpointSlices of a service: list, watch, and list again after the watch expired
    registered.py  registrations and drains by API, which the store keeps
    rates.py       output rate and prefix-cache hit rate of an engine, from its metrics
"""
