"""The composition root: the only folder that wires the others together."""
