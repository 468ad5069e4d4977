"""The live panel on standard error. It reads events and nothing else."""
