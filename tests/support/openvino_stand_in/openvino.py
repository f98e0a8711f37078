"""Stands for the package ``openvino``, which ``openvino_genai`` imports."""
