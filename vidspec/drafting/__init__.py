"""Who proposes tokens: one drafter per file. A drafter knows nothing of the target but token ids and kept indices."""
