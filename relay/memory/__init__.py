"""Process 4: the memory service, and what its stores are made of."""
