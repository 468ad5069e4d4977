"""How fast will it be, and with which settings: the speed model, the draft window, simulated runs, papers' tables.

Pure Python throughout: nothing here loads a model or reads a clock.
"""
