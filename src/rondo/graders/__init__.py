"""Rule-based rewards: what an answer is worth, part by part."""

from rondo.graders.combine import combine
from rondo.graders.format import FormatChecker
from rondo.graders.guarded import guarded
from rondo.graders.match import AnswerMatcher
from rondo.graders.programs import run_program
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
