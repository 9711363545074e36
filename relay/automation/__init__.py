"""Library, pure: what an automation is, when it runs, and when it runs no more."""
