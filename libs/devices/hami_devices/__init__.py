"""Devices: what pods ask, what devices have left, which device takes a share, and what each vendor changes about it. Pure: no I/O, no clock.

A vendor is data (``vendor``, and a module for each); ``catalog`` is the way in for the services. One node is judged here (``fit``), which is
the specification of the columns in the scheduler's ``placement``.
"""

from hami_devices.catalog import Catalog
from hami_devices.config import ConfigError, DeviceConfig
from hami_devices.requests import RequestError
from hami_devices.vendor import Vendor

__all__ = ["Catalog", "ConfigError", "DeviceConfig", "RequestError", "Vendor"]
