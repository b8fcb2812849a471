"""Switches: each is set, read back and put back; a bad request is refused and changes nothing."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from harness.conditions.switch import Owner, Phase, Switch
from harness.conditions.switches import SWITCHES, applied, environment_of, read_switches, switch
from harness.conditions.torch_state import NO_SPLIT_K, attribute
from harness.errors import ConfigError, UnsupportedConditionError
from harness.records.switches import SwitchValue, SwitchValues
from harness.records.verifier import Device

ROOT = Path(__file__).parents[2]

LIBRARY = [entry for entry in SWITCHES.values() if entry.phase is Phase.LIBRARY]

BUILD_DEPENDENT = {"cuda.preferred_blas_library", "cpu.allow_fp16_reduced_precision_reduction"}
"""Torch itself refuses these where the build or the processor has nothing to switch to."""

OTHER_VALUE: dict[str, SwitchValue] = {
    "num_threads": 1,
    "float32_matmul_precision": "medium",
    "mkldnn.matmul.fp32_precision": "ieee",
    "cuda.preferred_blas_library": "cublaslt",
}
"""A value that is not the default, for the switches that are no toggles."""


def everything() -> SwitchValues:
    return read_switches(Device.CPU) | read_switches(Device.CUDA)


def torch_float32_state() -> list[str]:
    """Return what torch itself says, past the switches."""
    backends: Any = torch.backends
    narrow = [backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision]
    return [torch.get_float32_matmul_precision(), *narrow]


def other(entry: Switch) -> SwitchValue:
    return OTHER_VALUE.get(entry.name, not entry.read())


def run_child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh process; its exit code is the child's assertion."""
    inherited = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("entry", LIBRARY, ids=lambda entry: entry.name)
def test_a_library_switch_is_set_read_back_and_put_back(entry: Switch) -> None:
    before, raw, value = everything(), torch_float32_state(), other(entry)
    assert before[entry.name] is not None, "the installed torch has every switch of the table"
    if entry.name in BUILD_DEPENDENT:
        with (
            pytest.raises(UnsupportedConditionError, match=entry.name),
            applied({entry.name: value}),
        ):
            pass
    else:
        with applied({entry.name: value}) as resolved:
            assert resolved == {entry.name: value}
            assert entry.read() == value
    assert everything() == before
    assert torch_float32_state() == raw


def test_without_the_context_manager_a_switch_leaks() -> None:
    entry = switch("mkldnn.deterministic")
    restore = entry.save()
    entry.write(True)
    leaked = entry.read()
    restore()
    assert (leaked, entry.read()) == (True, False)


def fail_under(requested: SwitchValues) -> NoReturn:
    """Raise from inside `applied`, once the values are seen to be set."""
    with applied(requested):
        assert {name: switch(name).read() for name in requested} == requested
        raise ZeroDivisionError


def test_switches_are_put_back_after_an_exception() -> None:
    before = everything()
    with pytest.raises(ZeroDivisionError):
        fail_under({"sdpa.flash": False, "num_threads": 1})
    assert everything() == before


def test_nested_use_puts_back_level_by_level_after_an_exception_too() -> None:
    before = everything()
    with applied({"float32_matmul_precision": "high", "sdpa.math": False}):
        outer, raw = everything(), torch_float32_state()
        with applied({"float32_matmul_precision": "medium"}):
            assert torch_float32_state() == ["medium", "tf32", "bf16"]
        assert everything() == outer
        with pytest.raises(ZeroDivisionError):
            fail_under({"float32_matmul_precision": "medium", "mkldnn.enabled": False})
        assert everything() == outer
        assert torch_float32_state() == raw == ["high", "tf32", "tf32"]
    assert everything() == before


def test_a_request_refused_half_way_changes_nothing() -> None:
    before = everything()
    requested: SwitchValues = {"num_threads": 1, "cuda.preferred_blas_library": "cublaslt"}
    with pytest.raises(UnsupportedConditionError, match="preferred_blas"), applied(requested):
        pytest.fail("entered")
    assert everything() == before


@pytest.mark.parametrize(
    "requested",
    [
        {"float32_matmul_precision": "highest", "mkldnn.matmul.fp32_precision": "bf16"},
        {"float32_matmul_precision": "highest", "mkldnn.matmul.fp32_precision": "tf32"},
        {"mkldnn.matmul.fp32_precision": "bf16"},
        {"float32_matmul_precision": "highest", "cuda.matmul.allow_tf32": True},
        {"float32_matmul_precision": "high", "cuda.matmul.allow_tf32": False},
    ],
    ids=str,
)
def test_a_mix_that_torch_cannot_answer_for_is_refused(requested: SwitchValues) -> None:
    raw = torch_float32_state()
    with (
        pytest.raises(UnsupportedConditionError, match="float32_matmul_precision"),
        applied(requested),
    ):
        pytest.fail("entered")
    assert torch_float32_state() == raw


@pytest.mark.parametrize(("precision", "allow_tf32"), [("highest", False), ("high", True)])
def test_both_interfaces_stay_readable_when_they_agree(precision: str, *, allow_tf32: bool) -> None:
    with applied({"cuda.matmul.allow_tf32": allow_tf32, "float32_matmul_precision": precision}):
        assert torch.get_float32_matmul_precision() == precision
        assert torch.backends.cuda.matmul.allow_tf32 is allow_tf32


def test_entering_a_process_that_mixed_the_interfaces_is_refused() -> None:
    code = (
        "import torch; torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
        "from harness.conditions.switches import applied\n"
        "with applied({'float32_matmul_precision': 'highest'}): pass"
    )
    result = run_child(code)
    assert result.returncode == 1
    assert "UnsupportedConditionError: switch float32_matmul_precision" in result.stderr


@pytest.mark.parametrize("before", [True, False, NO_SPLIT_K])
@pytest.mark.parametrize("during", [True, False, NO_SPLIT_K])
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_each_of_the_three_reduction_states_is_put_back(
    kind: str, before: SwitchValue, during: SwitchValue
) -> None:
    name = f"cuda.matmul.allow_{kind}_reduced_precision_reduction"
    with applied({name: before}):
        with applied({name: during}):
            assert switch(name).read() == during
        assert switch(name).read() == before


def test_warn_only_is_put_back_as_warn_only() -> None:
    with applied({"deterministic_algorithms": "warn"}):
        with applied({"deterministic_algorithms": True}):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_unknown_switch_is_named_with_the_nearest() -> None:
    with (
        pytest.raises(ConfigError, match=r"'cudnn\.benchmrk': did you mean 'cudnn\.benchmark'"),
        applied({"cudnn.benchmrk": True}),
    ):
        pytest.fail("entered")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_threads", 0),
        ("num_threads", True),
        ("num_threads", "2"),
        ("sdpa.flash", 1),
        ("sdpa.flash", "on"),
        ("sdpa.flash", None),
        ("float32_matmul_precision", "low"),
        ("OMP_NUM_THREADS", 2),
        ("deterministic_algorithms", 1),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(name: str, value: SwitchValue) -> None:
    before = everything()
    with pytest.raises(ConfigError, match=f"switch {name} cannot be"), applied({name: value}):
        pytest.fail("entered")
    assert everything() == before


def test_a_switch_that_this_torch_lacks_reads_none_and_cannot_be_set() -> None:
    absent = Switch(
        name="cudnn.later",
        reason="of a later release",
        access=attribute("backends.cudnn.later"),
        owner=Owner.ORDER,
        devices=frozenset({Device.CUDA}),
        choices=(False, True),
    )
    assert absent.read() is None
    absent.save()()
    with pytest.raises(UnsupportedConditionError, match=r"cudnn\.later: absent"):
        absent.write(True)


def test_a_missing_environment_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MKL_CBWR", raising=False)
    with (
        pytest.raises(
            UnsupportedConditionError, match="MKL_CBWR must be 'COMPATIBLE' and is unset"
        ),
        applied({"MKL_CBWR": "COMPATIBLE"}),
    ):
        pytest.fail("entered")


def test_a_variable_that_must_be_unset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with (
        pytest.raises(UnsupportedConditionError, match="run in a fresh process"),
        applied({"CUBLAS_WORKSPACE_CONFIG": None}),
    ):
        pytest.fail("entered")


APPLY_ONE_THREAD = """
import torch
from harness.conditions.switches import applied
with applied({"OMP_NUM_THREADS": "1"}) as resolved:
    assert resolved == {"OMP_NUM_THREADS": "1"}
    assert torch.get_num_threads() == 1, torch.get_num_threads()
"""


def test_a_fresh_process_started_with_the_variable_is_accepted() -> None:
    result = run_child(APPLY_ONE_THREAD, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr


def test_a_fresh_process_started_without_it_is_refused() -> None:
    result = run_child(APPLY_ONE_THREAD)
    assert result.returncode == 1
    assert "UnsupportedConditionError: environment variable OMP_NUM_THREADS" in result.stderr


def test_environment_of_takes_only_variables() -> None:
    values: SwitchValues = {"OMP_NUM_THREADS": "2", "num_threads": 2, "MKL_CBWR": None}
    assert environment_of(values) == {"OMP_NUM_THREADS": "2", "MKL_CBWR": None}


def test_each_switch_has_a_reason_and_a_device() -> None:
    assert all(entry.reason.endswith(".") and entry.devices for entry in SWITCHES.values())
