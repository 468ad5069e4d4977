"""The version of vidspec, written here and nowhere else; the build reads it."""

__version__ = "0.5.0"
