"""Models, adapters and data sets of the Hugging Face Hub by name: `ORG/NAME[@revision][:part]`.

Input is a name. Output is a folder or GGUF file (a model), a folder (an adapter) or a list of files (a split of a data
set) in the Hugging Face cache, which other programs share: existing files are used in place, missing files are
downloaded, resumed and verified. The package is free of torch, and imports `huggingface_hub` for requests only.

    names.py     syntax of names
    cache.py     the cache on this machine: lookup, list, removal
    listing.py   the files of a commit, and errors of the Hub with their remedies
    transfer.py  resumable, verified downloads
    gguf.py      which GGUF file a quantization selects
    models.py    which files are a model
    datasets.py  which files are a split of a data set

Read `models.py` first.
"""
