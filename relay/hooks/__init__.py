"""Library: the hook engine, which plans, runs and aggregates what the user registered."""
