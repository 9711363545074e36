"""aider: heard by its LLM history, written to by paste, its state told by its terminal's mode."""
