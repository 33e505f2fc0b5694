"""The typed config tree.

Values come from defaults, a TOML file, `RONDO_*` environment variables and `--a.b=c` flags, in this order. Every error
names the key, the source of the value and the nearest valid key. Read `config.py` first.
"""
