"""HTML pages about a run: one self-contained file each.

clip       the figures of one clip
pictures   its frames, with an overlay on the places the draft did not see
timeline   work of each worker over time, from a trace
folder     many clips: a table, and distributions of lengths and speeds
report     the page of a run, written by the run itself or from its records
words      definitions and number formats
page       the template engine; it knows no clips
"""
