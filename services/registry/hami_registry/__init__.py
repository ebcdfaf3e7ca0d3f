"""The registry: who is alive and what everyone has, on the bus and in the cluster's annotations; and how grants went, on their pods.

One leader, stateless but for the bus; followers keep warm. Reads ``hami.v1.devices.>``, ``hami.v1.liveness.>`` and the outcomes of
``hami.v1.allocations.>``; writes liveness, and devices for third-party plugins. It alone patches pods, and nodes but for the lock's key.
``rules`` decides about nodes (with ``records`` and ``timetable``), ``phases`` about pods; ``devices`` and ``outcomes`` carry out.
To people it shows a page (``web``), and it reads the bus for who has no way there (``bus_reads``).
"""
