"""Training of all models: one loop, which runs a schedule of stages."""
