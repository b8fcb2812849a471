"""``scorepin locate``: what it prints, as text, as JSON and as a plot."""

import json
from pathlib import Path

import yaml

from tests.calibrate.faulty_models import write_faulty, write_rows, write_sound
from tests.command import scorepin


def test_a_wrong_position_is_told_and_plotted(tmp_path: Path) -> None:
    sound = write_sound(tmp_path / "sound")
    model = write_faulty(sound, tmp_path / "faulty", "ColumnPositions")
    config = {
        "name": "example",
        "verifier": {
            "model": str(model),
            "head": {"kind": "reward"},
            "prompt": {"template": "<bos>{context}<sol>{branch}<eos>"},
            "trust_remote_code": True,
        },
        "decisions": write_rows(tmp_path / "rows.jsonl", 4),
        "arms": [
            {
                "precision": "float32",
                "reduction_order": {"name": "vendor", "num_threads": 1},
                "batching": {"mode": "padded", "side": "left", "max_rows": 4},
            }
        ],
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    pair = ("--left", "solo", "--right", "rows-4")
    done = scorepin("locate", path, "--decision", "d1", *pair, "--plot", "growth.svg", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "first module that differs: model.places (Embedding)" in done.stdout
    assert "made from equal bits inside: model\n" in done.stdout
    assert "cause: position_ids: the row's tokens are given other position ids" in done.stdout
    assert (tmp_path / "growth.svg").read_text().startswith("<svg")
    told = scorepin("locate", path, "--decision", "d1", *pair, "--json", cwd=tmp_path)
    found = json.loads(told.stdout)
    assert found["divergence"]["parting"]["cause"] == "position_ids"
    assert found["right"]["num_rows"] == 4
    wrong = scorepin("locate", path, "--decision", "d9", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--decision d9: not among the decisions" in wrong.stderr
