"""Schedules, one per file, named after it."""
