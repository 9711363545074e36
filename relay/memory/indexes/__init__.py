"""The indexes that relay knows (see relay.memory.index). Each is imported when it is configured."""
