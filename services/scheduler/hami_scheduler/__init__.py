"""The scheduler: decides which node and devices a pod gets, binds it, and says why where it cannot.

Owns the grants on ``HAMI_ALLOCATIONS`` and the verdicts on ``HAMI_VERDICTS``, which nobody else publishes; reads ``HAMI_DEVICES``, and outcomes on
``HAMI_ALLOCATIONS``; answers ``hami.v1.ask.explain``. In the cluster it writes Bindings, Events, its Lease, the node lock (``envvar`` nodes alone)
and one condition in the status of waiting pods.

``placement`` decides where a pod fits; ``inventory``, ``pods``, ``quotas``, ``reservations``, ``waking``, ``allocations`` and ``lock_rules`` decide
what changes mean; ``picture`` is the one way in for changes. ``service`` is the core; ``extender``, ``questions`` and ``main`` are the shell.
"""
