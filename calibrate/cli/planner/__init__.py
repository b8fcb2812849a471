"""Sub-commands of `scorepin` for the planner side, one file each."""
