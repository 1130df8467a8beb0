"""The planner page: move budgets and terms, and see at once what they mean."""
