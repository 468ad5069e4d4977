"""Measurements of profiles on the same clips: ``vidspec bench`` and ``vidspec profile``.

turns       the measuring loop
loaded      the models that all measured profiles share
measure     a whole bench; rows: its figures and table; results: its file
profiled    ``vidspec profile``; breakdown: of the time; passes: times of single passes; profile_view: tables
machine     facts about the machine; tables: Markdown
"""
