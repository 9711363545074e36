"""Qwen Code: heard by its event file, written to by its input file."""
