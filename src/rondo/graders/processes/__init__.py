"""A pool of worker processes for graders that compute. A call that exceeds its deadline is killed with its worker."""
