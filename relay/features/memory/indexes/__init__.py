"""The indexes that relay knows (see relay.features.memory.index). Each is imported when it is
configured."""
