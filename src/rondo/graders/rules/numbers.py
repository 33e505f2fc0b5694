"""Parsing of numbers in natural text."""

import re
from decimal import Context, Decimal, DecimalException

# Wide enough for exact comparison of realistic answers; longer numbers are rounded, not rejected.
_CONTEXT = Context(prec=60)

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"
_EXPONENT = r"(?:[eE][-+]?\d{1,4})?"
_NUMBER = rf"(?:{_DIGITS}|\.\d+){_EXPONENT}"
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}")
_WHOLE = re.compile(rf"([-+]?)\s*(?:[$€£]\s*)?({_NUMBER})(?:\s*/\s*({_NUMBER}))?\s*[%°]?")
# Not inside a word or after a decimal point. A sign between two operands, as in "5-3", is not part of the number, and
# the dots of "...5" are not a decimal point.
_IN_TEXT = re.compile(
    rf"(?:(?<![A-Za-z0-9_)])[-+])?(?<![A-Za-z0-9_])(?<!\d\.)"
    rf"(?:{_DIGITS}|(?<!\.)\.\d+){_EXPONENT}(?:/{_DIGITS})?"
)


def parse_number(text: str) -> Decimal | None:
    """`1,234.5`, `-3/4`, `\\frac{3}{4}`, `$5`, `50%` (as 50), `6e-3`; None for a text that is not a single number."""
    text = _FRACTION.sub(r"\1/\2", _ascii(text)).strip().strip("$ ").rstrip(".")
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    sign, above, below = match.groups()
    try:
        value = _decimal(above) if below is None else _CONTEXT.divide(_decimal(above), _decimal(below))
    except DecimalException:
        return None
    return _CONTEXT.minus(value) if sign == "-" else value


def last_number(text: str) -> str | None:
    """The last number in a text, in its original notation."""
    matches = _IN_TEXT.findall(_ascii(text))
    return matches[-1] if matches else None


def close(value: Decimal, reference: Decimal, tolerance: float) -> bool:
    """Whether the value is within `tolerance` of the reference, relative to the reference if that is larger than 1."""
    bound = _CONTEXT.multiply(Decimal(str(tolerance)), max(Decimal(1), _CONTEXT.abs(reference)))
    return _CONTEXT.abs(_CONTEXT.subtract(value, reference)) <= bound


def _ascii(text: str) -> str:
    return text.replace("−", "-").replace("\\$", "$").replace("\\%", "%").replace("{,}", ",")


def _decimal(text: str) -> Decimal:
    return _CONTEXT.create_decimal(text.replace(",", ""))
