"""Reads what agents have written of their past conversations; an agent's reader is a file."""
