"""``python -m hami_rig.scheduler``: the stand-in for kube-scheduler as a process."""

from hami_rig.scheduler.process import main

main()
