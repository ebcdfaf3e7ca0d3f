"""An API server for development: the part of Kubernetes that HAMi talks to, in one process, in memory, without etcd.

It is a development tool: nothing is kept on disk, everybody may do everything, and only the kinds and verbs that this project uses exist.
What it does have behaves as kube-apiserver 1.37 does, which the contract tests hold both to. Objects and their history are in
``hami_runtime.kube.store``; here are the wire (``server``, ``watches``, ``discovery``, ``tables``), what happens to a body before it is
stored (``schema``, ``defaults``, ``validation``, ``admission``), and the kinds of patches (``patches``, ``apply``).
"""

from hami_rig.apiserver.kubeconfig import kubeconfig
from hami_rig.apiserver.server import ApiServer
from hami_rig.apiserver.settings import ApiServerSettings

__all__ = ["ApiServer", "ApiServerSettings", "kubeconfig"]
