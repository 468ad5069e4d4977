"""Decoding of a clip from prefilled prompt to last token: schedules, their events, counters and the trace."""
