"""The bus: a port (``port``), NATS JetStream (``jetstream``) and one in memory (``memory``)."""

from hami_runtime.bus.port import Bus, BusError, BusUnavailable, Delivery, LiveMessage, MessageRefused, NoReply, Overtaken, StartAt

__all__ = ["Bus", "BusError", "BusUnavailable", "Delivery", "LiveMessage", "MessageRefused", "NoReply", "Overtaken", "StartAt"]
