"""The real workers of the parallel schedule: the target by the passes it requests, the draft in its own process."""
