"""The runtime stands alone: no torch, quick to import, safe in threads, and it does not grow."""

import os
import resource
import subprocess
import sys
import threading
from itertools import pairwise

import numpy as np
import pytest
from engine_cases import needs_engine

from codtdq.runtime import Runtime

pytestmark = needs_engine
# a finder that knows no torch and nothing that comes with it
BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "scipy", "PIL", "safetensors", "tqdm"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def alone(code, *words):
    """What a process without torch prints."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + code, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_masks_without_torch(exported, image, tmp_path):
    _, path = exported("cfrn-small")
    np.save(tmp_path / "image.npy", image)
    alone(
        "import numpy as np\n"
        "from codtdq.runtime import Runtime\n"
        "mask = Runtime(sys.argv[1]).predict(np.load(sys.argv[2]))\n"
        "assert 'torch' not in sys.modules\n"
        "np.save(sys.argv[3], mask)",
        path,
        tmp_path / "image.npy",
        tmp_path / "mask.npy",
    )
    assert np.array_equal(np.load(tmp_path / "mask.npy"), Runtime(path).predict(image))


def test_what_needs_torch_says_so_without_it():
    code = "import codtdq\ntry: codtdq.quantize\nexcept ImportError as error: print(error)"
    assert "codtdq.quantize needs the whole package" in alone(code)


def test_image_files_without_pillow_are_an_error_of_one_line(exported, tmp_path):
    _, path = exported("cfrn-small")
    code = (
        "from codtdq.runtime import Runtime\n"
        "try: Runtime(sys.argv[1]).predict('photo.jpg')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    found = alone(code, path)
    assert found.startswith("UnsupportedError photo.jpg: image files are read with Pillow")
    assert found.count("\n") == 1


def test_import_is_quick():
    """The least of some, in processor time: the machine may be busy."""
    code = (
        "import time; began = time.process_time(); import codtdq.runtime\n"
        "print(time.process_time() - began)"
    )
    assert min(float(alone(code)) for _ in range(5)) < 0.2


def test_eight_threads_on_one_runtime_give_the_serial_masks(exported):
    _, path = exported("cfrn-small")
    network = Runtime(path, threads=1)
    draw = np.random.default_rng(3)
    images = [draw.integers(0, 256, (90 + 7 * i, 120, 3), dtype=np.uint8) for i in range(8)]
    wanted = [network.predict(one) for one in images]
    wrong = []

    def work(number):
        for turn in range(6):
            at = (number + turn) % 8
            if not np.array_equal(network.predict(images[at]), wanted[at]):
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


def resident():
    """Bytes that this process has in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def grown(path, count):
    """Bytes that a runtime grows by in so many predictions after its first ones, steadily: those of
    the best quarter, four times. Other parts of the process may come back to memory meanwhile.
    """
    network = Runtime(path, threads=1)
    image = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    for _ in range(20):
        network.predict(image)
    marks = [resident()]
    for _ in range(4):
        for _ in range(count // 4):
            network.predict(image)
        marks.append(resident())
    return 4 * min(b - a for a, b in pairwise(marks))


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc")


@needs_proc
def test_memory_does_not_grow(exported):
    assert grown(exported("cfrn-small")[1], 100) < 2 << 20


@needs_proc
def test_opening_again_and_again_frees_what_it_took(exported):
    _, path = exported("cfrn-small")
    for _ in range(5):
        Runtime(path).close()
    before = resident()
    for _ in range(30):
        Runtime(path).close()
    assert resident() - before < 4 << 20  # the weights alone are 3.7 MB


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_does_not_grow_over_ten_thousand_predictions(exported, capsys):
    bytes_more = grown(exported("cfrn-small")[1], 10_000)
    with capsys.disabled():
        print(f"\n10,000 predictions: {bytes_more} bytes more than after 20")
    assert bytes_more < 2 << 20
