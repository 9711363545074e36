"""Library: terminal output to source events."""
