"""Export of trained models as ONNX graphs, which `limner.runtime` decodes without torch."""
