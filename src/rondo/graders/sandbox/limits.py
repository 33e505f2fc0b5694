"""Resource limits of a program."""

import math
from dataclasses import asdict, dataclass

from rondo.base.errors import ConfigError

_LEAST_MEMORY = 64 << 20
"""Bytes. With less, Python and the modules imported before the program do not start."""

_PATIENCE = 2.0
"""Factor of a program's `seconds` after which it is ended without a verdict on a busy machine."""


@dataclass(frozen=True)
class SandboxLimits:
    seconds: float = 10.0
    """Seconds from start to end, without the time in which other load prevented the program from running. Applies per
    input; for tests, to all together."""
    cpu_seconds: int = 5
    """CPU seconds of all processes of the program together."""
    memory: int = 512 << 20
    """Bytes of address space per process, and of memory of all processes together."""
    disk: int = 16 << 20
    """Bytes of its files, which are in memory."""
    files: int = 256
    processes: int = 12
    """Maximum number of processes; threads count."""
    output: int = 1 << 20
    """Bytes of output."""

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
        """Maximum seconds from start to end, independent of other load."""
        return _PATIENCE * self.seconds

    def of_cage(self) -> dict[str, int]:
        given = asdict(self)
        return {name: given[name] for name in ("memory", "disk", "files", "processes")} | {
            "cpu": self.cpu_seconds
        }
