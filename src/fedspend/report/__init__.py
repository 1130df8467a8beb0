"""What people look at: groups of clients over the rounds, and plots of them. Every number shown
comes from the plan itself.
"""
