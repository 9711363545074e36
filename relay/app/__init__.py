"""Library: the composition root, the only folder that makes objects of several others."""
