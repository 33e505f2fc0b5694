"""`rondo rl plot`: the curves of one RL job, or of several side by side, as a picture."""

from __future__ import annotations

from pathlib import Path

from rondo.cli.options.arguments import VerbParser


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo rl plot",
        "Draw reward by part, mismatch, phases and lengths of a job; of several, the same figures side by side.",
    )
    parser.add_argument("jobs", metavar="JOB", nargs="+", help="the first 6 or more characters of a hash")
    parser.add_argument("--out", default="rl.png", metavar="FILE", help="output file (rl.png)")
    given = parser.parse_args(argv)
    out = Path(given.out)

    from rondo.jobs.job import Job
    from rondo.rl.record import plot

    plot.need(out)
    jobs = [Job.find(prefix) for prefix in given.jobs]
    plot.save(jobs, out)
    print(out)
    return 0
