"""Projects in which no agent writes without an intent that allows it."""
