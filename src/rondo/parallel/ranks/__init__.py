"""The ranks of a job: discovery from the launcher's environment, device meshes, heartbeats and failure detection.

`world.py` reads the environment, `mesh.py` forms process groups, `crew.py` supervises the ranks through `board.py`.
"""
