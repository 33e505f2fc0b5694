"""Basics that every other package uses: settings, errors, atomic files, logs, metrics, traces, child processes.

This is the lowest layer. It imports neither torch nor an HTTP library, and no other package of Rondo, so that the
`rondo` command starts in milliseconds and any package may import it.

Inputs are the environment (`RONDO_HOME`, `RONDO_*`), the config file and the command line. Outputs are a validated
config tree, files that are written completely or not at all, log lines, Prometheus metrics and OpenTelemetry spans.

    settings/    the typed config tree: defaults, then TOML, then environment variables, then flags
    storage/     atomic writes, content hashes, the folders under `RONDO_HOME`
    telemetry/   logs, Prometheus metrics, OpenTelemetry traces, the statistics of one request
    errors.py    the exceptions that a user can cause, each with a remedy
    entry.py     Python functions that a user names as `module:attribute` or `file.py:attribute`
    lazy.py      names that a package exports but imports on first use

Read `errors.py` first, then `settings/config.py`: a config section is a pydantic model, and each package has its own in
a `config.py` of its own.
"""
