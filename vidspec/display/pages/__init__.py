"""Pages to look at a run with: one HTML file each that loads nothing else.

clip       the figures of one clip
pictures   its frames, and which of their places the draft saw
timeline   which worker did what and when, from a trace
folder     many clips: a table, and how lengths and speeds are spread
report     the page of a run, while it runs or of the records that it left
bench      the page of what ``vidspec bench`` measured
words      definitions, and how figures are written
page       the template engine; it knows no clips
"""
