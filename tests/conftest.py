"""Shared by all tests: helpers beside a test file can be imported by their plain name."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent / "quantizer"))
torch.set_num_threads(2)
