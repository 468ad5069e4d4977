"""Measures methods and peers side by side on the same clips, in one interleaved run."""
