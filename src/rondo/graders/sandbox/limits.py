"""What a program may use."""

import math
from dataclasses import asdict, dataclass

from rondo.base.errors import ConfigError

_LEAST_MEMORY = 64 << 20
"""Below it Python itself, with what is imported before the program, does not run."""

_PATIENCE = 2.0
"""How many times its seconds a program may take on a busy machine, before it is given up without a verdict."""


@dataclass(frozen=True)
class SandboxLimits:
    seconds: float = 10.0
    """From its start to its end, but for the time in which other work of the machine keeps it from running. One for
    each input; for tests, all together."""
    cpu_seconds: int = 5
    """Of all its processes together."""
    memory: int = 512 << 20
    """Bytes of address space of each process, and of what all of them hold together."""
    disk: int = 16 << 20
    """Bytes of its files, which are kept in memory."""
    files: int = 256
    processes: int = 12
    """Threads count."""
    output: int = 1 << 20
    """Bytes that it may print."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ConfigError(f"seconds must be above 0, not {self.seconds}.", param="seconds")
        least = {
            "cpu_seconds": 1,
            "memory": _LEAST_MEMORY,
            "disk": 4096,
            "files": 2,
            "processes": 1,
            "output": 1,
        }
        for name, smallest in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < smallest:
                raise ConfigError(
                    f"{name} must be a whole number of at least {smallest}, not {value}.", param=name
                )

    @property
    def longest(self) -> float:
        """Seconds from its start to its end, whatever else the machine does."""
        return _PATIENCE * self.seconds

    def of_cage(self) -> dict[str, int]:
        given = asdict(self)
        return {name: given[name] for name in ("memory", "disk", "files", "processes")} | {
            "cpu": self.cpu_seconds
        }
