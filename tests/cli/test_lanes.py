"""``scorepin lanes``: what it prints can be pasted into a config, and calibrates."""

import json
from pathlib import Path

import yaml

from calibrate.config import load_config
from harness.records.batching import Lane, Lanes
from tests.command import a_config, invoke, write_config

TABLE = """\
lane       rows   forwards   padding
────────────────────────────────────
8 x 80       46          6     17.3%
8 x 112     110         14     14.5%
8 x 184      48          6     27.9%
together    204         26     19.6%

batching:
  mode: lanes
  side: right
  lanes:
    - {rows: 8, width: 80}
    - {rows: 8, width: 112}
    - {rows: 8, width: 184}
"""


def test_a_table_and_what_to_paste(tmp_path: Path) -> None:
    config = write_config(tmp_path / "fake.yaml")
    done = invoke("lanes", config, "--rows", "8", "--max-lanes", "3")
    assert (done.code, done.stderr) == (0, "")
    assert [line.rstrip() for line in done.stdout.splitlines()] == TABLE.splitlines()


def test_what_is_printed_is_a_batching_of_a_config(tmp_path: Path) -> None:
    config = write_config(tmp_path / "fake.yaml")
    options = ("--rows", "8", "--max-lanes", "3")
    printed = invoke("lanes", config, *options).stdout
    batching = yaml.safe_load(printed[printed.index("batching:") :])["batching"]
    arm = {**a_config()["arms"][0], "batching": batching}
    (found,) = load_config(write_config(tmp_path / "lanes.yaml", arms=[arm])).arms
    assert isinstance(found.batching, Lanes)
    facts = json.loads(invoke("lanes", config, *options, "--json").stdout)
    assert found.batching.lanes == tuple(Lane(**lane) for lane in facts["lanes"])
    assert sum(facts["num_rows"]) == 204
    assert 0 < facts["padding_share"] < 0.5


def test_too_few_rows_for_a_lane_are_told(tmp_path: Path) -> None:
    done = invoke("lanes", write_config(tmp_path / "fake.yaml", num_decisions=1), "--rows", "64")
    assert done.code == 2
    assert "cannot fill a lane of 64 twice" in done.stderr
