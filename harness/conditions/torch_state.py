"""The ways in which switches are reached in torch and in the environment, and nothing numeric.

Paths are resolved at the call, so that importing this costs no torch. Where torch's own interface
hides a state (a third value, a setting that writes over another), the access here shows all of it,
so that what is saved can be put back exactly.
"""

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from harness.conditions.switch import Access
from harness.records.switches import SwitchValue

__all__ = [
    "DEBUG_MODES",
    "NO_SPLIT_K",
    "attribute",
    "blas_library",
    "deterministic_mode",
    "environment_variable",
    "functions",
    "half_reduction",
    "shared_float32",
]

NO_SPLIT_K = "no_split_k"
"""Reduced-precision reductions off, and split-K kernels off with them."""

DEBUG_MODES: tuple[bool | str, ...] = (False, "warn", True)
"""Deterministic algorithms by torch's number: default, warn, error."""


def environment_variable(name: str) -> Access:
    """Reach an environment variable, which is only ever read."""
    return Access(get=partial(os.environ.get, name), set=None)


def attribute(path: str) -> Access:
    """Reach ``torch.<path>`` as an attribute."""
    parent, _, leaf = path.rpartition(".")

    def write(value: SwitchValue) -> None:
        setattr(_find(parent), leaf, value)

    return Access(get=partial(_find, path), set=write)


def functions(getter: str, setter: str) -> Access:
    """Reach a setting through ``torch.<getter>()`` and ``torch.<setter>(value)``."""

    def read() -> SwitchValue:
        value: SwitchValue = _find(getter)()
        return value

    def write(value: SwitchValue) -> None:
        _find(setter)(value)

    return Access(get=read, set=write)


def half_reduction(kind: str) -> Access:
    """Reach one of torch's three states: (reduced, split-K), (not, split-K), (not, not).

    The fourth, reduced without split-K, torch refuses; so this is one switch and not two.
    """
    matmul, name = "backends.cuda.matmul", f"allow_{kind}_reduced_precision_reduction"

    def read() -> SwitchValue:
        allowed = bool(getattr(_find(matmul), name))
        split_k = getattr(_find(matmul), f"{name}_split_k", True)
        return allowed if split_k else NO_SPLIT_K

    def write(value: SwitchValue) -> None:
        setattr(_find(matmul), name, (False, False) if value == NO_SPLIT_K else value)

    return Access(get=read, set=write)


def deterministic_mode() -> Access:
    """Reach the state of torch.use_deterministic_algorithms through the debug mode.

    That call would import the compiler as well (seconds), to set a flag of the compiler's own.
    """

    def read() -> SwitchValue:
        number: int = _find("get_deterministic_debug_mode")()
        return DEBUG_MODES[number]

    def write(value: bool | str) -> None:  # noqa: FBT001 - a switch's value
        _find("set_deterministic_debug_mode")(DEBUG_MODES.index(value))

    return Access(get=read, set=write)


def blas_library() -> Access:
    """Reach torch.backends.cuda.preferred_blas_library by lower-case name."""
    library = functions(*["backends.cuda.preferred_blas_library"] * 2)

    def read() -> SwitchValue:
        chosen: Any = library.get()
        return str(chosen.name).lower()

    return Access(get=read, set=library.set)


def shared_float32(access: Access) -> Access:
    """Save, with this switch, all of the float32 state: each of its three switches writes it."""
    return Access(get=access.get, set=access.set, save=_save_float32)


def _save_float32() -> Callable[[], None]:
    legacy = _find("get_float32_matmul_precision")()
    paths = ("backends.cuda.matmul", "backends.mkldnn.matmul")
    narrow = {path: value for path in paths if (value := _fp32_precision(path)) is not None}

    def restore() -> None:
        _find("set_float32_matmul_precision")(legacy)
        for path, value in narrow.items():
            _find(path).fp32_precision = value

    return restore


def _fp32_precision(path: str) -> str | None:
    """Return what the newer interface says, which is not there before torch 2.9."""
    try:
        value: str = _find(path).fp32_precision
    except AttributeError:
        return None
    return value


def _find(path: str) -> Any:
    found: Any = import_module("torch")
    for part in path.split("."):
        found = getattr(found, part)
    return found
