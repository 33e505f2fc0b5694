"""The registry of a gateway: names of models in requests, and the files behind them.

service.py     names and their targets, registration, load and unload
local_jobs.py  jobs of this machine whose models the registry may lack
located.py     files of a model on this machine: a job's folder, an exported checkpoint, a copy from an object store
remote.py      files of a model in an object store
"""
