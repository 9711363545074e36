"""Text without I/O: the grammar, escapes, envelopes."""
