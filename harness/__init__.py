"""The planner's names; imports neither torch nor numpy."""
