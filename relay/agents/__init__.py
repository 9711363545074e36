"""Library: the agents that relay knows, one folder per agent, with files of the same names."""
