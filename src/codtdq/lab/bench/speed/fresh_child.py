"""Runs alone in a new process: import, load one model, make one mask, report.

Started by `fresh_process` with its settings as the first argument. Nothing of the benchmark is
imported here, so memory and time are those of a program that only predicts.
"""

import json
import sys
import time


def main() -> None:
    """Print one line of JSON with seconds and bytes."""
    settings = json.loads(sys.argv[1])
    begin = time.perf_counter()
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
    side = settings["size"]
    image = numpy.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=numpy.uint8)
    masks = predict_batch(model, [image] * settings["batch"], input_size=side)
    done = time.perf_counter()
    report = {
        "import_seconds": imported - begin,
        "load_seconds": loaded - imported,
        "predict_seconds": done - loaded,
        "cpu_seconds": time.process_time(),
        "masks": len(masks),
        "import_bytes": memory_of_imports,
        "peak_bytes": resident("VmHWM"),
    }
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


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
