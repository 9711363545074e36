"""Process 5: a worker, which runs the route functions and channel adapters of one configuration."""
