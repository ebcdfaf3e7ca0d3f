"""The admission webhook: recognises pods that ask for devices, gives them to our scheduler, and refuses what cannot be served.

Owns nothing but its certificate and the configuration objects that point at it; any number of replicas serve side by side. It neither
reads nor writes the bus. ``review`` decides (with ``quota`` and ``patch``); ``certificates`` and ``registration`` keep the API server's
trust; ``http`` and ``main`` are the shell.
"""
