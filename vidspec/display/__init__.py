"""The live panel on standard error; it sees events and nothing else."""
