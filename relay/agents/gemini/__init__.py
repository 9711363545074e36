"""Gemini CLI: read by its session file, its title and its screen, and typed into."""
