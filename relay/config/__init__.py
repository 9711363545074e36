"""Library: relay.config.py and settings, checked and trusted."""
