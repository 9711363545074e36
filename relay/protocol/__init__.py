"""Library: the wire formats between the processes; no behaviour."""
