"""A stand-in for kube-scheduler that calls a scheduler extender as the real one does.

``fit``, ``queue``, ``preemption`` and ``verdict`` decide; ``extender`` speaks HTTP or calls in process; ``stand_in`` runs the
cycle. What it takes over from the real one: one filter at a time, binds that overlap, which changes wake a refused pod, texts of conditions
and events, back-off, nominated nodes, and that a refusal by the extender alone never leads to preemption. What it leaves out: volumes, spread
constraints, affinity between pods, preferred affinity, overhead of pods, several profiles.
"""
