"""Trained weights that ship with the package, as float16 safetensors files."""
