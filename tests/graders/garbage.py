"""Answers that no grader may stumble over."""

GARBAGE = (
    "",
    " \n\t",
    "\x00",
    "\ud800 alone",
    "NaN",
    "-Infinity",
    "1e999",
    "null",
    "{" * 5000,
    "[" * 100_000,
    '{"a": ' * 3000,
    "{{ item.answer }} {{ sample.output_text }}",
    "\\boxed{" * 1000,
    "\\boxed{\\frac{1}{0}}",
    "\u202e42\u202c \U0001f600 ٤٢ ４２",
    "a" * 100_000,
    "9" * 10_000,
    "<answer>" * 1000,
    "%s %d {0} ${x} $(ls) `ls`",
)
