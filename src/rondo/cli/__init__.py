"""The `rondo` command.

Each verb is one module with a function `run(argv) -> int`. `main.py` maps the verb to its module and imports nothing
else, so that `rondo --help` needs neither torch nor a model. A verb parses its flags, builds the config tree, calls one
function of another package and prints the result; it contains no business logic.

Inputs are the command line, `RONDO_*` variables and the config file. Outputs are text or JSON on standard output,
progress and errors on standard error, and an exit code that depends on the kind of error.

    main.py        dispatch of verbs, error messages, exit codes
    commands/      one module a verb: serve, train, rl, bench, data, model, plan, ...
    subcommands/   verbs below a verb, such as `rondo model quantize` or `rondo rl rollouts`
    options/       argument parsing, vLLM's flag names, the whole config tree
    view/          progress bars, live tables and curves in a terminal

Read `main.py` first, then `commands/train.py` as the shortest complete verb.
"""
