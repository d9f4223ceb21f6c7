"""The service: own API, and the routers of other programs' conventions, over one engine."""
