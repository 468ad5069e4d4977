"""A draft head of one's own: states of the target's captions, the head, its steps, what it gains."""
