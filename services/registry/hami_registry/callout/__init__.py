"""Who may be an agent on the bus: answers NATS' auth callout, as a process of its own (``hami-auth-callout``), beside the registry.

An agent shows the token of its service account; the API server says whose it is and on which node (TokenReview); NATS gets a user who may speak
for that node alone, for a short while. It hears ``$SYS.REQ.USER.AUTH`` and nothing else of the bus, and it is the only one with the key that users
of the bus are signed with. ``claims`` decides.
"""
