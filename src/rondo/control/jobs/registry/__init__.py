"""Registry of models: rows of results of jobs and of imported models, their names, and their lineage.

rows.py     a registered model, and the names that it may have
book.py     registration, look-up by name, aliases, promotion and rollback
facts.py    kind, base, digest and lineage of a model, from its folder and its job's folder
"""
