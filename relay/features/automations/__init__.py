"""Functions that relay runs for events or by the clock, on the workers and lanes of personas."""
