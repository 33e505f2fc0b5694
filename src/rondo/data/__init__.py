"""Training data: reading records, tokenizing them into shards, and drawing batches in a deterministic order.

Inputs are JSON Lines, text and Parquet files on a local disk or in an object store (fsspec). Outputs are prepared
shards of tokens with an index, and for each training step the rows of this rank: documents packed into flat rows
without padding.

    input/         records from files, and weighted mixtures of sources
    preparation/   parallel tokenization into shards (`rondo data prepare`), restartable after a crash
    storage/       shards on disk: WebDataset tar files, their index, object stores with a local cache
    batching/      data sets, the deterministic sampler, packing, the loader with prefetch
    config.py      settings of the loader

The order of the data is a pure function of the seed and the position, for any number of ranks; resuming from a
checkpoint continues with exactly the same documents. Read `batching/sampler.py` and `batching/packing.py` first.
"""
