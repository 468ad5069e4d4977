"""Measurements behind the docs' figures of speed and quality, by one command, and the pages written from them."""
