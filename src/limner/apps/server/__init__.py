"""The service: API of Limner, and the routers of other programs' conventions, over one engine."""
