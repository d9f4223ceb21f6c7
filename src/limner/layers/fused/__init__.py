"""Optimised forms of layers, behind the same calls as the plain ones; `docs/performance.md` has what each gains."""
