"""What every service's shell needs: ports to the bus, the cluster and the clock with their adapters, settings, telemetry, lifecycle.

Each port is a ``Protocol`` with a real adapter and one in memory; services are given ports and never make them. Nothing here knows a service.
"""
