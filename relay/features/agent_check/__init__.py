"""agent_check."""
