"""How a study's numbers are said, in a terminal and in a report: rates in per cent."""

from calibrate.power.detection import Delay
from calibrate.statistics import Rate

__all__ = ["NONE", "counted", "delay", "interval"]

NONE = "-"
"""Where there is nothing to say."""


def interval(rate: Rate | None) -> str:
    """Say ``12.0 [9.1, 15.6]``: the rate and its interval, per cent."""
    if rate is None:
        return NONE
    return f"{_percent(rate.value)} [{_percent(rate.lower)}, {_percent(rate.upper)}]"


def counted(value: Rate | float | None) -> str:
    """Say a rate with its counts, or a number."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return NONE if value is None else f"{value.num_events} of {value.num_trials}, {interval(value)}"


def delay(found: Delay) -> str:
    """Say ``2, 3``: the median and what 95 % of the orders do not pass."""
    if not found.num_raised:
        return "never"
    return ", ".join("never" if one is None else str(one) for one in (found.median, found.most))


def _percent(share: float) -> str:
    """Return per cent with as many digits as matter at either end."""
    value = 100 * share
    near_an_end = 0 < value < 1 or 99.95 <= value < 100
    digits = 0 if value in (0, 100) else 2 if near_an_end else 1
    return f"{value:.{digits}f}"
