"""Claude Code: read by hooks and transcript, written to by its message socket."""
