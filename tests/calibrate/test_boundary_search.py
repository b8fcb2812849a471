"""The search in a real run: its process, its place in the store, and what comes of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from calibrate.boundary_search import run_searches, searches_by_arm
from calibrate.config import CalibrationConfig, Sweep
from calibrate.observations import ProcessFacts
from calibrate.run import shapes_of
from calibrate.stored_run import read_run
from harness.conditions.batching import Batch
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.decisions import read_decisions, row_texts
from harness.errors import StoreError, WorkerError
from harness.records import AxisSearch, Equivalence, PrecisionName, Switch
from harness.records.batching import Padded, PaddingSide, Solo
from harness.runner import ConditionProcess
from harness.tolerance_file import read_tolerance_file
from tests.calibrate.example_runs import (
    LATER,
    a_config,
    a_store,
    an_arm,
    files_in,
    run,
    write_decisions,
)
from tests.calibrate.killed_runs import tolerance_bytes

PRECISIONS = (PrecisionName.FLOAT32, PrecisionName.BFLOAT16)
ROWS = Sweep(rows=(2,), reference_rows=4, sides=())
FEW = 8
MOST = 6


def searching(decisions: str, model: str = "fake:rounding") -> CalibrationConfig:
    return a_config(decisions, model, sweep=ROWS, arms=(an_arm(batching=Padded(max_rows=6)),))


@pytest.fixture
def config(tmp_path: Path) -> CalibrationConfig:
    return searching(write_decisions(tmp_path / "decisions.jsonl"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    run(searching(write_decisions(folder / "decisions.jsonl")), folder)
    return folder


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> CalibrationConfig:
    """Return two arms of the embedded verifier, over a few decisions."""
    order = ReductionOrderSpec(name="vendor", num_threads=1)
    arms = (
        an_arm(precision=precision, reduction_order=order, batching=Padded(max_rows=MOST))
        for precision in PRECISIONS
    )
    decisions = write_decisions(tmp_path_factory.mktemp("real") / "decisions.jsonl", FEW)
    return a_config(decisions, "embedded:reward", sweep=ROWS, arms=tuple(arms))


@pytest.fixture(scope="module")
def found(
    real: CalibrationConfig, tmp_path_factory: pytest.TempPathFactory
) -> dict[PrecisionName, dict[str, AxisSearch]]:
    with a_store(tmp_path_factory.mktemp("searched")) as store:
        run_searches(real, read_decisions(real.decisions, None), store)
        searches = searches_by_arm(real, store)
    return {
        precision: {search.axis: search for search in searches[at]}
        for at, precision in enumerate(PRECISIONS)
    }


def by_brute_force(config: CalibrationConfig, precision: PrecisionName) -> set[tuple[int, int]]:
    """Return where any row in slot 0 switches, from every row at every size."""
    arm = next(arm for arm in config.arms if arm.precision is precision)
    texts = row_texts(read_decisions(config.decisions, None))
    with ConditionProcess(config.verifier, arm.condition, texts) as process:
        lengths = [len(row.token_ids) for row in process.ready().rows]
        sizes = range(1, MOST + 1)
        batches = [
            Batch(rows=(at,) * size, width=length, side=PaddingSide.RIGHT)
            for at, length in enumerate(lengths)
            for size in sizes
        ]
        first = [scores[0] for scores in process.score(batches)]
    by_row = [first[start : start + MOST] for start in range(0, len(first), MOST)]
    return {(size, size + 1) for own in by_row for size in sizes[:-1] if own[size - 1] != own[size]}


def test_float32_switches_between_3_and_4_rows_and_bfloat16_does_not(
    real: CalibrationConfig, found: dict[PrecisionName, dict[str, AxisSearch]]
) -> None:
    """Bfloat16 is the negative control: the same sizes, the same rows, the same search."""
    single, brain = (found[precision]["num_rows"] for precision in PRECISIONS)
    assert single.switches == (Switch(last=3, first=4),)
    assert brain.switches == ()
    assert single.probe_lengths == brain.probe_lengths
    assert set(brain.sizes) <= set(single.sizes) == {1, 2, 3, 4, 6, *single.sizes}


def test_the_search_agrees_with_every_row_at_every_size(
    real: CalibrationConfig, found: dict[PrecisionName, dict[str, AxisSearch]]
) -> None:
    switches = found[PrecisionName.FLOAT32]["num_rows"].switches
    assert {(one.last, one.first) for one in switches} == by_brute_force(
        real, PrecisionName.FLOAT32
    )


def test_the_file_lists_what_was_tried_and_the_sweep_is_dense_there(
    config: CalibrationConfig, whole: Path
) -> None:
    file = read_tolerance_file(files_in(whole).tolerance)
    assert file.config_digest == config.digest
    rows, widths = file.tolerances[0].searches
    assert (rows.axis, rows.sizes) == ("num_rows", (1, 2, 3, 4, 5, 6))
    assert [one.first for one in rows.switches] == [2, 3, 4, 5, 6]
    assert (widths.axis, len(widths.switches) > 5) == ("padded_width", True)
    measured = read_run(whole)
    assert set(measured.planned.sweep.rows) == {1, 2, 3, 4, 5, 6}
    names = {name for process in measured.scores.values() for name in process}
    assert {"rows-3", "rows-5"} < names
    assert any(name.startswith("wide-4-") for name in names)


def test_without_a_search_nothing_is_listed_and_fewer_sizes_are_measured(
    config: CalibrationConfig, tmp_path: Path, whole: Path
) -> None:
    plain = replace(config, sweep=replace(config.sweep, search=False))
    file = run(plain, tmp_path / "plain").file
    assert file.tolerances[0].searches == ()
    assert file.config_digest != config.digest
    fewer, more = (
        {name for process in read_run(folder).scores.values() for name in process}
        for folder in (tmp_path / "plain", whole)
    )
    assert fewer < more


def test_a_verifier_that_never_moves_has_no_switch_and_is_certified_over_the_sizes_tried(
    tmp_path: Path,
) -> None:
    decisions = write_decisions(tmp_path / "decisions.jsonl", 104)
    (tolerance,) = run(searching(decisions, "fake:exact"), tmp_path / "run").file.tolerances
    assert [search.switches for search in tolerance.searches] == [(), ()]
    assert tolerance.equivalence is Equivalence.ANY
    assert tolerance.searches[0].sizes == (1, 2, 3, 4, 6)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the process of every condition that is started: searches score duplicates first."""
    found: list[str] = []
    original = ConditionProcess.score

    def recorded(
        process: ConditionProcess, batches: Sequence[Batch]
    ) -> Iterator[tuple[float, ...]]:
        repeated = any(len(set(batch.rows)) < len(batch.rows) for batch in batches)
        found.append("search" if repeated else "measure")
        return original(process, batches)

    monkeypatch.setattr(ConditionProcess, "score", recorded)
    return found


def test_a_search_that_was_cut_short_is_done_again_and_gives_the_same_bytes(
    config: CalibrationConfig,
    tmp_path: Path,
    whole: Path,
    starts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = ConditionProcess.score

    def dying(process: ConditionProcess, batches: Sequence[Batch]) -> Iterator[tuple[float, ...]]:
        if len(starts) == 3:
            process._process.kill()
            process._process.wait()
        return original(process, batches)

    with monkeypatch.context() as patched:
        patched.setattr(ConditionProcess, "score", dying)
        with pytest.raises(WorkerError, match=r"(?s)arm-0/search: .*SIGKILL.*run again to resume"):
            run(config, tmp_path / "run")
    starts.clear()
    run(config, tmp_path / "run")
    assert "search" in starts
    assert tolerance_bytes(tmp_path / "run") == tolerance_bytes(whole)
    starts.clear()
    run(config, tmp_path / "run", now=LATER)
    assert starts == [], "what is stored is neither searched nor measured again"


def test_rows_alone_are_not_searched(config: CalibrationConfig, tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        alone = replace(config, arms=(an_arm(batching=Solo()),))
        run_searches(alone, read_decisions(config.decisions, None), store)
        assert (store.searches(), store.facts()) == ({}, {})


def test_a_search_settles_its_build_and_rows(config: CalibrationConfig, tmp_path: Path) -> None:
    decisions = read_decisions(config.decisions, None)
    with a_store(tmp_path) as store:
        run_searches(config, decisions, store)
        assert set(store.facts()) == set(store.searches()) == {"arm-0/search"}
        assert len(shapes_of(store.rows())) == 2 * len(decisions)
        with pytest.raises(StoreError, match="UNIQUE"):
            store.append_search("arm-0/search", ())
        other = changed_build(store.facts()["arm-0/search"])
        with pytest.raises(StoreError, match="another build than arm-0/search: engine"):
            store.settle_process("arm-0/measure-0", other, store.rows())


def changed_build(facts: ProcessFacts) -> ProcessFacts:
    return replace(facts, build=replace(facts.build, engine="another"))


def test_a_search_comes_back_from_the_store(tmp_path: Path) -> None:
    search = AxisSearch(
        axis="num_rows",
        held="",
        sizes=(1, 2, 3),
        switches=(Switch(last=2, first=3),),
        probe_lengths=(7, 9),
    )
    with a_store(tmp_path) as store:
        store.append_search("p", [search])
    with a_store(tmp_path) as store:
        assert store.searches() == {"p": (search,)}
