"""Library: what features that show something share: the stream's reader, its rows, ``attach``."""
