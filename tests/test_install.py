"""The wheel: what is in it, and that it works with what `pip install scorepin` brings."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness.tolerance_file import seal
from tests.examples import a_tolerance_file
from tests.planner_site import base_distributions, link_environment, planner_python

ROOT = Path(__file__).parents[1]
EXPECTED = (
    "calibrate/cli/__main__.py",
    "calibrate/demo.yaml",
    "calibrate/templates/report.html",
    "harness/__init__.py",
    "harness/verifiers/embedded/decisions.jsonl",
    "harness/verifiers/embedded/lm/model.safetensors",
    "harness/verifiers/embedded/reward/model.safetensors",
    "harness/verifiers/embedded/reward/tokenizer.json",
)
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it offline: the build's own requirement is among those of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder))
    subprocess.run([*PIP, "wheel", *options, str(ROOT)], check=True, capture_output=True)
    (found,) = folder.glob("scorepin-*.whl")
    return found


def test_what_is_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in EXPECTED if name not in names] == []
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"harness", "calibrate", "scorepin-0.1.0.dist-info"}
    assert [name for name in names if name.endswith((".pyc", ".sqlite"))] == []
    packed = zipfile.ZipFile(wheel).read("calibrate/demo.yaml")
    assert packed == (ROOT / "configs" / "demo.yaml").read_bytes()


def test_every_module_of_the_checkout_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = [path for top in ("harness", "calibrate") for path in (ROOT / top).rglob("*.py")]
    assert len(sources) > 50
    assert [path for path in sources if str(path.relative_to(ROOT)) not in names] == []


def test_the_planner_side_of_the_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    python = link_environment(tmp_path / "venv", base_distributions())
    target = tmp_path / "target"
    options = ("--no-deps", "--no-index", "--quiet", "--target", str(target))
    subprocess.run([*PIP, "install", *options, str(wheel)], check=True, capture_output=True)
    (tmp_path / "t.tolerance.json").write_bytes(seal(a_tolerance_file()))
    where = planner_python(
        python, "-c", "import harness; print(harness.__file__)", path=target, cwd=tmp_path
    )
    assert (where.stderr, where.stdout.strip()) == ("", str(target / "harness" / "__init__.py"))
    command = target / "bin" / "scorepin"
    shown = planner_python(python, command, "show", "t.tolerance.json", path=target, cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "verifier    embedded:reward" in shown.stdout
    doctor = planner_python(python, command, "doctor", path=target, cwd=tmp_path)
    assert "scorepin       0.1.0" in doctor.stdout
    assert "torch          not installed" in doctor.stdout
    demo = planner_python(python, command, "demo", path=target, cwd=tmp_path)
    assert demo.returncode == 2
    assert "yaml is not installed: pip install 'scorepin[calibrate]'" in demo.stderr
