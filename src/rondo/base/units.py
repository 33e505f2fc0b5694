"""Numbers as people write and read them."""

import re

GIB = 2**30
_COUNT = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([kmgt])(?:i?b)?", re.IGNORECASE)


def parse_count(text: str) -> int:
    """4096, 4k or 4K, 1.5m, 64MB: suffixes are powers of 1024 in either case, for tokens and bytes alike.

    Raises ValueError for any other text.
    """
    text = text.strip()
    if match := _COUNT.fullmatch(text):
        return int(float(match[1]) * 1024 ** (" kmgt".index(match[2].lower())))
    return int(text)


def human_bytes(count: float) -> str:
    """1536 -> '1.5 KB' (powers of 1024, as `ls -h` counts)."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if abs(count) < 1024 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def human_count(count: int) -> str:
    """1_234_567 -> '1.23M': parameters and tokens."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.2f}{unit}"
    return str(count)


def human_seconds(seconds: float) -> str:
    """75.2 -> '1m15s', 0.42 -> '0.4s'."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
