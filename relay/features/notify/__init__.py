"""Notices for a person who looks elsewhere."""
