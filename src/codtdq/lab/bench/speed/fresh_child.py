"""Runs alone in a new process: import, load one model, make one mask, report.

Started by `fresh_process` with its settings as the first argument. Nothing of the benchmark is
imported here, so memory and time are those of a program that only predicts.
"""

import json
import sys
import time
from typing import Any


def main() -> None:
    """Print one line of JSON with seconds and bytes."""
    settings = json.loads(sys.argv[1])
    begin = time.perf_counter()
    predict = without_torch if settings["program"] else with_torch
    imported, memory_of_imports, loaded, masks = predict(settings)
    done = time.perf_counter()
    report = {
        "import_seconds": imported - begin,
        "load_seconds": loaded - imported,
        "predict_seconds": done - loaded,
        "cpu_seconds": time.process_time(),
        "masks": masks,
        "import_bytes": memory_of_imports,
        "peak_bytes": resident("VmHWM"),
    }
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def with_torch(settings: dict[str, Any]) -> tuple[float, int, float, int]:
    """A checkpoint: when imports were done and their memory, when it was loaded, how many masks."""
    import numpy
    import torch

    import codtdq

    load, create_model = codtdq.load, codtdq.create_model
    from codtdq.evaluation.predict import predict_batch
    from codtdq.importing import import_file

    torch.set_num_threads(settings["threads"])
    for file in settings["imports"]:
        import_file(file)
    imported = time.perf_counter()
    memory_of_imports = resident("VmRSS")
    if settings["packed"]:
        model = load(settings["path"], backend=settings["backend"])
    else:
        model = create_model(settings["architecture"], checkpoint=settings["path"])
    loaded = time.perf_counter()
    images = [image_of(numpy, settings["size"])] * settings["batch"]
    masks = predict_batch(model, images, input_size=settings["size"])
    return imported, memory_of_imports, loaded, len(masks)


def without_torch(settings: dict[str, Any]) -> tuple[float, int, float, int]:
    """The same of a program file, in the runtime; several images one by one."""
    import numpy

    from codtdq.runtime import Runtime

    imported = time.perf_counter()
    memory_of_imports = resident("VmRSS")
    network = Runtime(settings["path"], threads=settings["threads"])
    loaded = time.perf_counter()
    image = image_of(numpy, settings["size"])
    masks = [network.predict(image) for _ in range(settings["batch"])]
    assert "torch" not in sys.modules
    return imported, memory_of_imports, loaded, len(masks)


def image_of(numpy: Any, side: int) -> Any:
    """The same pixels for everybody."""
    return numpy.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=numpy.uint8)


def resident(field: str) -> int:
    """VmRSS (now) or VmHWM (highest) of this process, in bytes.

    The kernel's own mark: what getrusage gives may be that of the parent.
    """
    with open("/proc/self/status", encoding="ascii") as stream:
        for line in stream:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    main()
