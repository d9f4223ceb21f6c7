"""Optimised forms of layers with the interface of the plain forms; `docs/performance.md` lists their speed-ups."""
