"""Rule-based rewards: the score of a completion, component by component.

Inputs are a completion and an item (the reference answer and other fields of the record). Output is a `Score` with
named parts between 0 and 1. The same graders serve RL, evaluation and OpenAI's fine-tuning API (`string_check`,
`text_similarity`, `score_model`, `label_model`, `python`, `multi`).

    registry.py   graders by type name, from JSON or TOML: `grader_of({"type": "math"})`
    score.py      `Grader`, `Sample`, `Score`
    rules/        exact and numeric match, mathematics, multiple choice, format, regex, JSON schema, text similarity
    execution/    generated code and user functions, run with limits
    judges/       LLM as a judge, through any OpenAI endpoint
    sandbox/      isolated execution of untrusted programs (Linux namespaces, seccomp)
    processes/    a pool of CPU processes with time-outs for everything that computes
    definition/   grader definitions: fields, templates, formulas and combinations
    guarded.py    a crash or time-out of a grader as an outcome of its own, never as a score of 0

Graders are free of torch. Read `score.py` first, then `rules/match.py`.
"""

from rondo.graders.definition.combine import combine
from rondo.graders.execution.programs import run_program
from rondo.graders.guarded import guarded
from rondo.graders.rules.format import FormatChecker
from rondo.graders.rules.match import AnswerMatcher
from rondo.graders.sandbox.inside.program import ProgramResult
from rondo.graders.score import Grader, Sample, Score, judged

__all__ = [
    "AnswerMatcher",
    "FormatChecker",
    "Grader",
    "ProgramResult",
    "Sample",
    "Score",
    "combine",
    "guarded",
    "judged",
    "run_program",
]
