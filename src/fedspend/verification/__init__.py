"""The independent check of a plan. Shares no code with the planner."""
