"""Round by round from a prefilled prompt to the last token: schedules, their events, counters and the trace."""
