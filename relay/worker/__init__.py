"""Process 5: a worker, which runs route functions and channel adapters, or automations."""
