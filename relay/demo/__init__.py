"""Library: ``relay demo``, two small agents that talk through everything that real ones use."""
