from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from mercer.operators.workers import cores, torch_threads
from mercer.planning import calibration, memory
from mercer.planning.calibration import measure_resource, saturating_rows
from mercer.planning.resource import GIB, PAPER_COMPONENTS, Resource, find_device


@pytest.mark.parametrize(
    ("n", "d", "l", "published"),
    [(1_100_000, 440, 144, 682), (600_000, 18, 2, 1687), (1_000_000, 784, 10, 735)],
    ids=["TIMIT", "SUSY", "MNIST"],
)
def test_paper_batch_sizes_come_out_of_12_gigabytes(n, d, l, published):
    # The paper rounds n; MNIST comes out 1.7 % above its table, the other two within one.
    titan = Resource(capacity=float("inf"), memory=12 * GIB, reserved=0.6 * GIB, block_copies=3)
    m_S = titan.memory_batch(n, d, l, preconditioner=12_000 * PAPER_COMPONENTS)
    assert m_S == pytest.approx(published, rel=0.02)
    assert titan.batch(n, d, l, preconditioner=12_000 * PAPER_COMPONENTS) == m_S


def test_capacity_batch_solves_its_equation():
    device = Resource(capacity=1e9, memory=GIB)
    assert (100 + 10) * device.capacity_batch(1000, 100, 10) * 1000 == pytest.approx(1e9)


def test_batch_is_the_smaller_of_the_two_and_at_least_one():
    assert Resource(capacity=1e9, memory=GIB).batch(1000, 100, 10) == 9090
    assert Resource(capacity=1e5, memory=GIB).batch(1000, 100, 10) == 1
    assert Resource(capacity=1e30, memory=8000).batch(1000, 1, 1) == 1


def test_resource_refuses_nonsense():
    with pytest.raises(ValueError, match=r"`memory` must be positive\. Got 0"):
        Resource(capacity=1, memory=0)


def test_saturating_rows_finds_the_knee():
    def seconds(m: int) -> float:
        return max(m, 64) / 64.0  # flat up to 64 rows, linear beyond

    assert saturating_rows(seconds) == 64


def test_capacity_is_measured_once_and_remembered(tmp_path, monkeypatch):
    calls = []

    def timer(device, dtype):
        calls.append(device)
        return lambda m: 1e-4 * max(m, 32) / 32

    monkeypatch.setattr(calibration, "_kernel_product_timer", timer)
    cache = tmp_path / "deep" / "capacity.json"
    first = measure_resource(torch.device("cpu"), cache=cache)
    second = measure_resource(torch.device("cpu"), cache=cache)
    assert len(calls) == 1
    assert first.capacity == second.capacity
    assert first.full_rate_rows == 32 * cores(torch.device("cpu"))
    cache.write_text('{"half a fi')
    assert measure_resource(torch.device("cpu"), cache=cache).capacity == first.capacity
    assert len(calls) == 2
    assert json.loads(cache.read_text())


def test_a_cache_that_cannot_be_written_only_costs_measuring_again(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "_kernel_product_timer", lambda *_: lambda m: 1e-4 * max(m, 8) / 8)
    blocked = tmp_path / "file"
    blocked.write_text("")
    found = measure_resource(torch.device("cpu"), cache=blocked / "capacity.json")
    assert found.full_rate_rows == 8 * cores(torch.device("cpu"))


def test_a_plan_depends_on_the_device_and_not_on_threads_or_noise(tmp_path, monkeypatch):
    knees = iter((100, 64, 256))  # rows at which one device seemed to saturate, three times

    def timer(device, dtype):
        knee = next(knees)
        return lambda m: 1e-4 * max(m, knee) / knee

    monkeypatch.setattr(calibration, "_kernel_product_timer", timer)
    found = []
    for i, threads in enumerate((1, 2, 3)):
        with torch_threads(threads):
            found.append(measure_resource(torch.device("cpu"), cache=tmp_path / f"{i}.json"))
    assert len({(r.full_rate_rows, r.capacity, r.integer_gain) for r in found}) == 1


def test_one_slow_moment_does_not_end_the_sweep():
    slow = {2, 4}  # somebody else's
    assert saturating_rows(lambda m: max(m, 64) / 64.0 * (100 if m in slow else 1)) == 64


def test_real_measurement_gives_a_usable_batch(tmp_path):
    device = measure_resource(torch.device("cpu"), cache=tmp_path / "capacity.json")
    assert 1 < device.full_rate_rows <= 1 << 16
    assert device.memory > 1 << 20


@pytest.mark.parametrize(
    ("version", "limit_name", "use_name"),
    [("2", "memory.max", "memory.current"), ("1", "memory.limit_in_bytes", "memory.usage_in_bytes")],
)
def test_container_limit_is_respected(tmp_path, version, limit_name, use_name):
    root = tmp_path / "cgroup"
    base = root if version == "2" else root / "memory"
    (base / "outer" / "inner").mkdir(parents=True)
    for folder, limit in ((base / "outer", "1000000"), (base / "outer" / "inner", "max")):
        (folder / limit_name).write_text(limit + "\n")
        (folder / use_name).write_text("400000\n")
    (base / "outer" / "memory.stat").write_text("anon 5\ninactive_file 1000\n")
    own = tmp_path / "self"
    own.write_text("0::/outer/inner\n" if version == "2" else "7:memory:/outer/inner\n3:cpu:/x\n")
    assert memory._container_headroom(root, own) == [601000.0]
    assert memory._container_headroom(root, tmp_path / "absent") == []


@pytest.mark.skipif(sys.platform != "linux", reason="address-space limits are read on Linux only")
def test_address_space_limit_is_respected():
    script = (
        "import resource, torch; limit = 6 * 1024**3;"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit));"
        "from mercer.planning.memory import free_memory;"
        "print(free_memory(torch.device('cpu')))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0 < float(out.stdout) < 6 * GIB


def test_a_processor_is_known_by_its_name(tmp_path):
    known = tmp_path / "cpuinfo"
    known.write_text("processor : 0\nmodel name\t: Swift 3000 @ 2 GHz: fast\nmodel name\t: other\n")
    assert calibration._processor_name(known) == "Swift 3000 @ 2 GHz: fast"
    known.write_text("processor : 0\nBogoMIPS : 50\n")
    assert calibration._processor_name(known).endswith("CPU")
    assert calibration._processor_name(tmp_path / "absent").endswith("CPU")


def test_device_auto_and_cpu_are_found():
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type in ("cpu", "cuda", "mps")


@pytest.mark.parametrize(
    ("local_rank", "count", "current", "found"),
    [
        (None, 4, 0, "cuda:0"),
        ("0", 4, 0, "cuda:0"),
        ("3", 4, 0, "cuda:3"),
        ("3", 1, 0, "cuda:0"),  # the launcher shows each rank only its own
        ("1", 4, 2, "cuda:2"),  # the script has chosen
        ("?", 4, 0, "cuda:0"),
    ],
)
def test_ranks_of_one_machine_take_different_gpus(monkeypatch, local_rank, count, current, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert find_device("auto") == torch.device(found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"`device` must be present on this machine. Got 'cuda:1'"):
        find_device("cuda:1")


@pytest.mark.parametrize("device", ["meta", "xla"])
def test_devices_that_hold_no_numbers_are_refused(device):
    with pytest.raises(ValueError, match=f"Got '{device}' instead, which PyTorch cannot compute on"):
        find_device(device)


def test_a_device_that_makes_no_sense_is_refused():
    with pytest.raises(
        ValueError, match=r"`device` must be \"auto\" or a device PyTorch knows.*Got 'gpu0'"
    ):
        find_device("gpu0")
