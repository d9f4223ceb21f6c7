"""Export of trained models as ONNX graphs, which ONNX Runtime computes without torch."""
