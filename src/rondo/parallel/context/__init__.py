"""Context parallelism: one row divided among ranks, with ring attention or Ulysses (all-to-all over heads)."""
