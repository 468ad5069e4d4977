"""The real workers of the parallel schedule: the target by passes it asks for, the draft in a process of its own."""
