"""Pages to look at a run with: one HTML file each that loads nothing else.

clip       what a page says of one clip, in words and figures
pictures   its frames, and which of their places the draft saw
timeline   who worked when, from a trace
folder     many clips: a table, and how lengths and speeds are spread
bench      what ``vidspec bench`` measured
words      definitions and figures as a reader meets them
page       the template engine, and nothing that knows clips
watching   the observer that collects a run and writes its page
finished   the page of records that are there already
"""
