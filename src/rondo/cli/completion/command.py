"""`rondo completion bash|zsh|fish`: the script of a shell; with --words, the candidates for a command line."""

from __future__ import annotations

from rondo.cli.options.arguments import VerbParser


def run(argv: list[str]) -> int:
    if argv[:1] == ["--words"]:
        from rondo.cli.completion.candidates import candidates

        for value, text in candidates(argv[1:]):
            print(f"{value}\t{text}" if text else value)
        return 0
    from rondo.cli.completion.scripts import SCRIPTS

    parser = VerbParser(
        "rondo completion", "Print a script that completes verbs, models, jobs, settings and their values."
    )
    parser.add_argument("shell", metavar="SHELL", choices=tuple(SCRIPTS), help="bash, zsh or fish")
    parser.epilog = (
        'Install: eval "$(rondo completion bash)" in ~/.bashrc; source <(rondo completion zsh) in ~/.zshrc; '
        "rondo completion fish | source in ~/.config/fish/config.fish."
    )
    print(SCRIPTS[parser.parse_args(argv).shell], end="")
    return 0
