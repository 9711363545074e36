"""What relay knows of each agent: one module per agent."""
