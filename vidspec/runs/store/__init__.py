"""Captions of one place, and how they are kept: journals, marks of files, names of files. Captions nothing."""
