"""``hami``, the command line: the rig, the log of events, and why a pod is where it is.

Commands only read and show; what they show is decided by the services. The rig's own code is imported when a rig command runs, so that the
command line works where only its own extra is installed.
"""
