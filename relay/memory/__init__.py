"""Process 4: the memory service, its store and the indexes behind that."""
