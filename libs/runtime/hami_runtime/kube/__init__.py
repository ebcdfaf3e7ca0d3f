"""The cluster: a port (``cluster``), the API server over HTTP (``http``) and one in memory (``memory``, over ``store``)."""
