"""Facts of the machine: there, stable, and honest about what cannot be known."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness import machine
from harness.records.verifier import Device


def test_the_cpu_is_named_with_its_instruction_sets() -> None:
    facts = machine.device_facts(Device.CPU)
    assert facts == machine.device_facts(Device.CPU)
    assert facts.device == "cpu"
    assert facts.name.strip(" /()")
    kernels = torch.backends.cpu.get_cpu_capability()
    assert facts.capability.split()[0] == f"kernels={kernels}"


def test_a_cpu_without_cpuinfo_still_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_cpuinfo", lambda _: "")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert machine.device_facts(Device.CPU).name.startswith("riscv64")


def test_the_libraries_of_a_cpu() -> None:
    found = machine.library_versions(Device.CPU)
    assert found["torch"] == torch.__version__
    assert "cuda" not in found
    assert all(isinstance(value, str) and value != "None" for value in found.values())


def test_the_facts_of_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="Example GPU", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(machine, "_cuda_driver", lambda: "550.54")
    facts = machine.device_facts(Device.CUDA)
    assert (facts.device, facts.name) == ("cuda", "Example GPU")
    assert facts.capability == "sm_90 multiprocessors=132 driver=550.54"


def test_package_versions() -> None:
    assert machine.package_version("torch") == version("torch")
    assert machine.package_version("no-such-package-here") is None


def test_cores_are_those_this_process_may_use() -> None:
    before = os.sched_getaffinity(0)
    assert machine.num_cores() == len(before)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert machine.num_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_cores_where_affinity_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.num_cores() == 1


def test_asking_imports_no_torch() -> None:
    source = Path(machine.__file__).read_text(encoding="utf-8")
    assert "\nimport torch" not in source
