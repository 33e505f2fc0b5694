"""Run by the webdataset peer's Python: what its library reads of a folder's shards, as JSON lines."""

import glob
import json
import sys

import webdataset

urls = sorted(glob.glob(f"{sys.argv[1]}/shard-*.tar"))
for sample in webdataset.WebDataset(urls, shardshuffle=False).decode():
    print(
        json.dumps(
            {"key": sample["__key__"], "tokens": sample["npy"].tolist(), "dtype": str(sample["npy"].dtype)}
        )
    )
