"""Workers of the parallel schedule: the target as requested passes in this process, the draft in its own process."""
