"""The Ray engine on a real cluster of several nodes, one of which dies half-way."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch

from codtdq.errors import UnsupportedError
from codtdq.lab.bench import run_accuracy
from codtdq.lab.bench.cells import make_grid, make_groups, row_identity
from codtdq.lab.bench.group import run_group
from codtdq.lab.bench.settings import RunSettings

ray = pytest.importorskip("ray")

SETS = ["camosynth/test-easy", "camosynth/test-small"]
METHODS = ["fp32", "w4a4", "cod-tdq"]
LIMIT = 6
# Dead nodes are noticed in seconds instead of half a minute.
FAST_HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    trace = tmp_path / "trace"
    trace.mkdir()
    for name, value in {
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "BENCH_TEST_SHARD": "2",
        "BENCH_TEST_TRACE": str(trace),
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }.items():
        monkeypatch.setenv(name, value)
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": FAST_HEALTH},
    )
    nodes = [made.add_node(num_cpus=1) for _ in range(2)]
    threads = torch.get_num_threads()
    yield made, nodes, trace
    torch.set_num_threads(threads)
    ray.shutdown()
    made.shutdown()


def by_cell(rows):
    return {row_identity(row): row for row in rows}


@pytest.mark.fault("a node of a Ray cluster lost in the middle of a pass")
def test_a_node_that_dies_costs_no_row_and_results_equal_local_ones(
    cluster, setting, tmp_path, monkeypatch
):
    made, nodes, trace = cluster
    killed = []

    def kill():
        """Take down a node, raylet and worker, while its task is inside a forward pass."""
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            time.sleep(0.02)
            workers = dict(path.name.split(".")[:2] for path in trace.iterdir())
            for node in [node for node in nodes if node.node_id in workers][:1]:
                made.remove_node(node, allow_graceful=False)
                with contextlib.suppress(ProcessLookupError):  # its worker may have noticed
                    os.kill(int(workers[node.node_id]), signal.SIGKILL)
                killed.append(node.node_id)
        (trace / "go").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    monkeypatch.setattr("codtdq.lab.bench.shard.SHARD_IMAGES", 2)
    out = tmp_path / "out"
    rows = run_accuracy(
        out,
        engine="ray",
        address=made.address,
        methods=METHODS,
        datasets=SETS,
        limit=LIMIT,
        keep_models=True,
        **setting,
    )
    killer.join()
    assert killed and not ray.is_initialized()
    used = [path.name.partition(".")[0] for path in trace.iterdir()]
    assert {node.node_id for node in nodes} | {"go"} >= set(used) > {killed[0], "go"}
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert len(lines) == len(by_cell(lines)) == len(rows) == len(METHODS) * len(SETS)
    assert [row["error"] for row in rows] == [None] * len(rows)

    passes = tmp_path / "passes"
    passes.mkdir()
    (passes / "go").touch()
    monkeypatch.setenv("BENCH_TEST_TRACE", str(passes))
    torch.set_num_threads(1)  # as in every worker; the fixture puts it back
    local = RunSettings(out=str(tmp_path / "local"), untrained=True, calibration_images=2)
    images = dict.fromkeys(SETS, LIMIT)
    groups = make_groups(make_grid(["test-bench"], METHODS, SETS, limit=LIMIT))
    expected = by_cell(
        row for group in groups for row in run_group(group, local, images, tmp_path / group.key)
    )
    assert len(used) > len(list(passes.iterdir()))  # what died with the node was done again
    for identity, row in by_cell(rows).items():
        for field in ("count", "metrics", "per_image", "hashes", "bits", "config", "diagnosis"):
            assert row[field] == expected[identity][field], (identity, field)

    # A resumed run takes the model that is there: its calibration is the old one.
    (out / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    again = run_accuracy(
        out,
        engine="ray",
        address=made.address,
        methods=METHODS,
        datasets=SETS,
        limit=LIMIT,
        resume=True,
        **setting,
    )
    assert again[1:] == rows[1:] and again[0]["started"] != rows[0]["started"]
    for field in ("metrics", "per_image", "hashes", "calibration"):
        assert again[0][field] == rows[0][field]
    assert not (out / "state").exists()  # a run that is complete leaves none


@pytest.mark.fault("a Ray cluster that does not answer, or only on the loopback address")
def test_an_unreachable_cluster_is_one_line(setting, tmp_path):
    with pytest.raises(UnsupportedError, match="no Ray cluster at 127"):
        run_accuracy(
            tmp_path,
            engine="ray",
            address="127.0.0.1:1",
            methods=["fp32"],
            datasets=SETS,
            limit=2,
            **setting,
        )


@pytest.fixture
def silent():
    """A port on which somebody listens and never answers: (host, port) of the loopback address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def bench(address, tmp_path):
    command = [sys.executable, "-m", "codtdq", "bench", "accuracy", "--engine", "ray"]
    command += ["--address", address, "--methods", "fp32,w4a4", "--models", "cfrn-small"]
    command += ["--dataset", "camosynth/test-easy", "--limit", "40", "--out", str(tmp_path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.fault("a Ray cluster that does not answer, or only on the loopback address")
def test_a_cluster_on_the_loopback_address_only_is_one_line(silent, tmp_path, monkeypatch):
    used = ray.util.get_node_ip_address()
    if used.startswith("127."):
        pytest.skip("this machine has no other address")
    run = bench(f"127.0.0.1:{silent[1]}", tmp_path)
    _, text = run.communicate(timeout=120)
    assert run.returncode == 2 and len(text.strip().splitlines()) == 1, text
    assert f"connects to {used}:{silent[1]}" in text and "--node-ip-address" in text


@pytest.mark.fault("SIGTERM while Ray waits for a cluster, or runs on one")
def test_sigterm_ends_a_run_that_waits_for_a_cluster(tmp_path):
    """Ray waits for a minute and more inside of native code."""
    used = ray.util.get_node_ip_address()
    with socket.create_server((used, 0)) as server:
        run = bench(f"{used}:{server.getsockname()[1]}", tmp_path)
        server.settimeout(60)
        kept = [server.accept()[0] for _ in range(2)]  # our look at the port, then Ray's
        time.sleep(1)
        run.terminate()
        assert run.wait(timeout=10) == 128 + signal.SIGTERM
        for one in kept:
            one.close()


@pytest.mark.slow
@pytest.mark.fault("SIGTERM while Ray waits for a cluster, or runs on one")
def test_sigterm_ends_a_run_on_a_cluster_and_leaves_whole_rows(cluster, tmp_path):
    made, _, _ = cluster
    run = bench(made.address, tmp_path)
    rows = tmp_path / "results.jsonl"
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and not (rows.exists() and rows.read_text()):
        time.sleep(0.2)
    run.terminate()
    assert run.wait(timeout=30) != 0
    assert all(json.loads(line)["status"] == "ok" for line in rows.read_text().splitlines())
