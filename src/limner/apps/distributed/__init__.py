"""Work on several machines: units of a collection, computed by the actors of a Ray cluster."""
