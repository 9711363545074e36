"""What agents keep for each other: the memory service and its indexes."""
