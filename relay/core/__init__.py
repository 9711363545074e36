"""Library: what every folder shares; standard library only."""
