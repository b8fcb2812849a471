"""Which variables are facts of a build: those that steer kernels and that no switch owns."""

import pytest

from harness.conditions.kernel_environment import kernel_environment
from harness.conditions.switches import SWITCHES


@pytest.mark.parametrize(
    "name",
    [
        "ATEN_CPU_CAPABILITY",
        "CUBLAS_EMULATE_SINGLE_PRECISION",
        "CUDA_LAUNCH_BLOCKING",
        "DNNL_MAX_CPU_ISA",
        "KMP_AFFINITY",
        "MKL_DYNAMIC",
        "NCCL_ALGO",
        "OMP_SCHEDULE",
        "PYTORCH_TUNABLEOP_ENABLED",
        "TORCH_MKLDNN_MATMUL_MIN_DIM",
    ],
)
def test_a_variable_that_steers_kernels_is_kept(name: str) -> None:
    assert kernel_environment({name: "1", "HOME": "x"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_CACHE_PATH",
        "CUDA_HOME",
        "CUDA_VISIBLE_DEVICES",
        "HOME",
        "MKLROOT",
        "MKL_VERBOSE",
        "NCCL_DEBUG",
        "NCCL_DEBUG_FILE",
        "OMP_WAIT_POLICY",
        "PATH",
        "TORCH_HOME",
        "TORCH_LOGS",
    ],
)
def test_a_variable_of_no_effect_is_left_out(name: str) -> None:
    assert kernel_environment({name: "1"}) == {}


@pytest.mark.parametrize("name", sorted(SWITCHES))
def test_a_variable_that_a_switch_owns_is_left_out(name: str) -> None:
    assert kernel_environment({name: "1"}) == {}


def test_names_are_sorted() -> None:
    assert list(kernel_environment({"TORCH_Z": "1", "KMP_A": "1"})) == ["KMP_A", "TORCH_Z"]
