"""What every test shares: property tests without deadlines (machines are noisy), and examples that are the same in every run.

Kubelets in a test's own process start children: gRPC, which reads this when it is imported, is to start no threads in them.
A shell without job control starts its background jobs with SIGINT ignored, and all their children: tests that interrupt a program need it back.
"""

import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
