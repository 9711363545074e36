"""Transcripts of other programs, taken into the agent ledger."""
