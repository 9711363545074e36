"""Library: governance of a project, which lets no agent write without an intent that allows it."""
