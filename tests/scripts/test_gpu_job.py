"""The job of a GPU node, run for real on a CPU, with an embedded model and few decisions."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from calibrate.config import load_config
from harness.records.verifier import Device
from harness.tolerance_file import load_tolerances
from scripts.gpu.job.config import EngineName, Filling, filled

ROOT = Path(__file__).parents[2]
SMALL = ("--device", "cpu", "--num-decisions", "14", "--coverage", "0.8", "--skip-tests")


def job(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.gpu.job", "--out", str(out), *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def steps(out: Path) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in json.loads((out / "job.json").read_text())}


def test_a_node_calibrates_and_leaves_everything_in_one_folder(tmp_path: Path) -> None:
    done = job(tmp_path, "--model", "embedded:reward", *SMALL)
    assert done.returncode == 0, done.stderr
    (file,) = load_tolerances(tmp_path).files
    assert file.tolerances[0].envelope.num_decisions == 14
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert load_config(tmp_path / "config.yaml").verifier.model == "embedded:reward"
    assert "torch" in json.loads((tmp_path / "build.json").read_text())["packages"]
    assert "torch==" in (tmp_path / "packages.txt").read_text()
    found = steps(tmp_path)
    assert found["calibrate.log"]["exit_status"] == 0
    assert found["nvidia-smi.txt"]["note"] == "nvidia-smi is not installed"
    assert "nvidia-smi.txt" in done.stderr


def test_a_calibration_that_fails_fails_the_job_and_says_which(tmp_path: Path) -> None:
    done = job(tmp_path, "--model", "no/such-model", *SMALL)
    assert done.returncode == 1
    assert "calibrate.log" in done.stderr
    assert steps(tmp_path)["calibrate.log"]["exit_status"] != 0
    assert "no/such-model" in (tmp_path / "calibrate.log.err").read_text()
    assert steps(tmp_path)["build.json"]["exit_status"] == 0


def test_cuda_tests_without_a_device_fail_the_job(tmp_path: Path) -> None:
    arguments = [one for one in SMALL if one != "--skip-tests"]
    done = job(tmp_path, "--model", "no/such-model", *arguments)
    assert done.returncode == 1
    assert steps(tmp_path)["tests.log"]["exit_status"] == 1
    assert "no CUDA device" in (tmp_path / "tests.xml").read_text()


def test_half_a_judge_is_refused(tmp_path: Path) -> None:
    done = job(tmp_path, "--model", "m", "--yes", "y", *SMALL)
    assert done.returncode == 2
    assert "together" in done.stderr


@pytest.mark.parametrize("engine", EngineName)
def test_a_filled_in_config_is_whole(engine: EngineName, tmp_path: Path) -> None:
    filling = Filling(model="org/model", engine=engine, yes=("y",), no=("n",), template="{branch}")
    (tmp_path / "config.yaml").write_text(filled(filling))
    config = load_config(tmp_path / "config.yaml")
    assert config.verifier.model == "org/model"
    assert config.verifier.device is Device.CUDA
    assert config.verifier.head.yes == ("y",)  # type: ignore[union-attr]
    assert config.claim.coverage == 0.99
    assert {arm.reduction_order.num_threads for arm in config.arms} == {None}


def test_the_node_script_can_be_run_and_the_manifests_be_read() -> None:
    gpu = ROOT / "scripts/gpu"
    assert (gpu / "node").stat().st_mode & stat.S_IXUSR
    for name in ("node", "slurm.sbatch"):
        checked = subprocess.run(["bash", "-n", str(gpu / name)], capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr
    manifest = yaml.safe_load((gpu / "kubernetes.yaml").read_text())
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert "scripts/gpu/node" in container["args"][0]
