"""Exported models: graphs that ONNX Runtime computes, without torch; `limner.load` reads them."""
