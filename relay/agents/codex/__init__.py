"""Codex CLI: how it is started, read and written to."""
