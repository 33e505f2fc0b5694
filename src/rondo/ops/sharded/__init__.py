"""Operations on DTensors: each rank computes on its own shards, by whatever version takes plain tensors there."""
