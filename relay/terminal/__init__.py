"""The terminal edge: the pump, its monitor, the screen source."""
