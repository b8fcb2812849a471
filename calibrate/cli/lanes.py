"""``scorepin lanes``: propose lanes for a config's verifier and decisions."""

from typing import TYPE_CHECKING, Annotated

import typer

from calibrate import console
from calibrate.cli.app import LOOK, app
from calibrate.cli.call import errors_told, print_json
from calibrate.cli.options import AsJson, ConfigPath

if TYPE_CHECKING:
    from calibrate.config import CalibrationConfig
    from calibrate.lanes import LanePlan


@app.command(rich_help_panel=LOOK)
def lanes(
    config_path: ConfigPath,
    *,
    max_lanes: Annotated[int, typer.Option(min=1, help="Lanes at most.")] = 8,
    rows: Annotated[int, typer.Option(min=1, help="Rows of every forward.")] = 32,
    as_json: AsJson = False,
) -> None:
    """Propose lanes: the few widths that cost this config's decisions the least padding."""
    with errors_told():
        from calibrate.config import load_config  # noqa: PLC0415 - needs YAML
        from calibrate.lanes import plan_lanes  # noqa: PLC0415

        lengths = _lengths(load_config(config_path))
        plan = plan_lanes(lengths, rows=rows, max_lanes=max_lanes)
        if as_json:
            print_json(_facts(plan))
            return
        console.print_lanes(plan)
        console.results.print()
        console.print_line(_yaml(plan))


def _lengths(config: "CalibrationConfig") -> list[int]:
    """Return the token counts of the decisions' rows, as the verifier itself encodes them."""
    from harness.decisions import read_decisions, row_texts  # noqa: PLC0415
    from harness.runner import ConditionProcess  # noqa: PLC0415

    texts = row_texts(read_decisions(config.decisions, config.num_decisions))
    with ConditionProcess(config.verifier, config.arms[0].condition, texts) as process:
        return [len(row.token_ids) for row in process.ready().rows]


def _facts(plan: "LanePlan") -> dict[str, object]:
    return {
        "lanes": [{"rows": use.lane.rows, "width": use.lane.width} for use in plan.uses],
        "num_rows": [use.num_rows for use in plan.uses],
        "num_forwards": [use.num_forwards for use in plan.uses],
        "padding_share": plan.padding_share,
    }


def _yaml(plan: "LanePlan") -> str:
    lines = [f"    - {{rows: {lane.rows}, width: {lane.width}}}" for lane in plan.lanes]
    return "\n".join(["batching:", "  mode: lanes", "  side: right", "  lanes:", *lines])
