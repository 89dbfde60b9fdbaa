"""A model in a form that other programs run: program files, ONNX."""
