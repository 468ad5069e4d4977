"""The real workers of the parallel schedule: the target in a thread, the draft in a process of its own."""
