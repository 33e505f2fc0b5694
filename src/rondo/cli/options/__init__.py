"""Command-line options: argparse with our error messages, short flags, vLLM's flag names, and the config tree of all
packages. Read `tree.py` first: it assembles the config from the `config.py` of each package.
"""
