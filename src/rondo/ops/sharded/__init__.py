"""Operations on DTensors: each rank runs the version for plain tensors on its own shards."""
