"""Several machines that write to each other: ``link``, on a NATS server that relay runs.

A message leaves its sender's outbox once the other machine's ledger has it. Without a link nothing
of NATS is imported.
"""

#: name -> (module of this package, what the verb does).
VERBS = {"link": ("verbs", "connect the agents of several machines")}
GROUP = "messages"
