"""A cluster on one machine, for development, tests and the demo: no Kubernetes, no Docker, no GPU.

``apiserver`` keeps the objects, ``scheduler`` stands in for kube-scheduler, ``kubelet`` for the kubelets; ``supervisor`` starts them, a NATS
server and the four real services as processes. The services cannot tell: everything here speaks the real protocols. Where a stand-in and the
real part differ, the stand-in is wrong.
"""
