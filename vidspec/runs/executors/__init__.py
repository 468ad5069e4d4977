"""Executors of runs, one file each: this process, several here, a Ray cluster; ``base`` has their protocol."""
