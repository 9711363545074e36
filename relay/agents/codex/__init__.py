"""Codex CLI: how it is started, heard and written to."""
