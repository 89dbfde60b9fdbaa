"""Run program files without torch: numpy and the native library are all it needs.

>>> from codtdq.runtime import Runtime
>>> network = Runtime("net.codtdq")          # a file that `codtdq export --to program` wrote
>>> mask = network.predict("photo.jpg")      # uint8 [H, W]; files need Pillow, arrays do not
"""

from codtdq.runtime.runtime import Runtime, include_dir, library_path

__all__ = ["Runtime", "include_dir", "library_path"]
