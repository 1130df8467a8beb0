"""The independent check of a plan. It shares no accounting code with the planner."""
