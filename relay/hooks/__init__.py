"""Hooks and pattern handlers: what the user registered, and how it is run."""
