"""Library: the ledger, the only SQL on messages. The broker alone writes to it."""
