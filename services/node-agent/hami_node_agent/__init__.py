"""The node-agent: one node's devices, from kubelet's point of view and from the scheduler's.

It owns the node's hardware, kubelet's device plugin, CDI specs and grant files. It reads ``hami.v1.allocations.<node>.*.*.grant`` and the
pods of its node; it writes ``hami.v1.devices.<node>.<type>``, ``hami.v1.allocations.<node>.*.*.outcome`` and, to the API server, Events only.

Deciding modules: ``matching`` and ``identity`` (which pod is this?), ``grants`` (may it be served?), ``needs`` and ``cdi`` (what does a
container get?), ``discovery`` and ``health`` (what is offered?), ``modes``. ``agent`` puts the parts together; ``plugin`` and ``kubelet`` are the
gRPC shell; ``nvml`` and ``profile`` are hardware, ``nvml_mig`` and ``mig_hardware`` what can be cut.
"""
