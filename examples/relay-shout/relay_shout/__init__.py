"""Messages in capitals: ``@shout:Bob hello`` in what an agent says, ``relay shout Bob hello``."""

#: name -> (module of this package, what the verb does).
VERBS = {"shout": ("verbs", "write to an agent in capitals; without a name: who shouts how often")}
