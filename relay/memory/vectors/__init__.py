"""Memories in a store of vectors: mem0's, or qdrant itself.

``backend`` says what memory means, once, over the ``port``; ``mem0_points`` and ``qdrant_points``
are what is behind that. Neither mem0 nor qdrant is imported before one of them is opened.
"""
