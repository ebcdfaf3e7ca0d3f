"""``python -m hami_rig.kubelet``: fake kubelets as one process."""

from hami_rig.kubelet.process import main

main()
