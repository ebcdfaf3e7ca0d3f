"""Fake kubelets that speak the real protocols over real unix sockets: device plugins, PodResources, CDI, and pods' lives.

``devices`` decides which device ids a container gets, ``checkpoint`` how that is written down, ``admission`` whether a pod is let in, ``cdi``
what a container is given, ``status`` what is reported; none of them does I/O. ``plugins`` and ``pod_resources`` speak gRPC, ``containers``
starts containers (which are files, timers or local processes), ``worker`` leads one pod through its life, ``kubelet`` ties a node together.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
"""Set before gRPC is imported, which reads it then: otherwise it starts threads in every child before that becomes a container's program, and what
they complain about is in the container's log."""
