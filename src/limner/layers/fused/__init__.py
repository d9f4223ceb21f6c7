"""Optimised forms of layers with the interface of the plain forms; `docs/notebook/speed.md` lists their speed-ups."""
