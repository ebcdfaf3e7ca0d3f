"""The web page: what the registry shows to people, and what it must know for that. Read-only; it decides nothing about the cluster.

``history`` knows who held what when, ``facts`` makes of it what the page asks for, both pure; ``feed`` follows the bus and asks the scheduler,
``handlers`` answers over HTTP, ``bundle`` serves the page itself, whose sources are in ``page/``.
"""
