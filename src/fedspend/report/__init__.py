"""Reports and plots of plans and runs. Every planned number comes from the plan itself."""
