"""ScalarLM's training API: its fields, archives, uploads and responses over the jobs of the gateway.

fields.py   `train_args` as settings of a job
archive.py  the data or the program of a tar archive, read without unpacking it
specs.py    specifications of jobs from both
uploads.py  uploads in pieces with hashes, which continue after an interruption
shown.py    jobs in ScalarLM's shape
publish.py  copies of a model in a folder, an object store or on the Hugging Face Hub
"""
