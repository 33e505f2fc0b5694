"""Directory of weight versions and their holders, with leases, watches and a single writer for each model.

`types.py` has the Protocol, `local.py` the directory of one process, and `etcd.py` the one of a cluster; `lease.py`
keeps a claim, and `handover.py` waits for replicas at a writer's end.
"""

from rondo.base.errors import ConfigError
from rondo.weights.directory.local import Directory
from rondo.weights.directory.types import Published, WeightDirectory, new_owner, newest_version

__all__ = ["Directory", "Published", "WeightDirectory", "new_owner", "newest_version", "open_directory"]


def open_directory(url: str, lease_s: float = 30.0) -> WeightDirectory:
    """`local:` for this process, or `etcd://host:port[,host:port]` for a cluster."""
    if url in ("", "local:"):
        return Directory(lease_s)
    if url.startswith("etcd://"):
        from rondo.weights.directory.etcd import EtcdDirectory

        return EtcdDirectory(url.removeprefix("etcd://").split(","), lease_s)
    raise ConfigError(f"directory {url!r} is neither local: nor etcd://HOST:PORT.", param="weights.directory")
