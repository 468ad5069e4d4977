"""HTML pages about a run: one self-contained file each, of one template with sections.

page           the template, and what makes a section; it knows no clips
clip           a clip on a page; tokens: its tokens and windows; timeline: its trace
clip_sections  the sections about one clip
folder         those about many clips: a table, and distributions of lengths and speeds
side_by_side   those about two runs
review         those for captions under review
report         the page of a run, written by the run itself or from its records
pictures       frames, with an overlay on the places the draft did not see
words          definitions and number formats
"""
