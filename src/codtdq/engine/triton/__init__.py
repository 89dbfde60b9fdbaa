"""Triton kernels for the 4-bit operators, each beside its plain torch twin (`reference`).

Importing this package touches neither Triton nor a device; the kernels are imported when a model is
put on the backend "triton".
"""
