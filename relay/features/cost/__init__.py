"""What agents cost: tokens and money by agent, day and task, caps, and the limits of accounts."""
