"""Jobs of a run."""

from vidspec.runs.job import Job


def jobs_of(*names):
    return [Job(name, number=number) for number, name in enumerate(names, start=1)]
