"""Trajectories: the steps of one run, and readers for public formats."""

from harness.planner.effects.trajectories.formats import TrajectoryFormat, read_trajectory
from harness.planner.effects.trajectories.mini_swe_agent import mini_swe_agent_trajectory
from harness.planner.effects.trajectories.openai_messages import openai_trajectory
from harness.planner.effects.trajectories.trajectory import Trajectory

__all__ = [
    "Trajectory",
    "TrajectoryFormat",
    "mini_swe_agent_trajectory",
    "openai_trajectory",
    "read_trajectory",
]
