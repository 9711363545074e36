"""Library: what users test their own parts with; nothing in relay imports it."""
