"""Library: what relay brings along for other programs; a configuration imports what it wants."""
