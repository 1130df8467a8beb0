"""What happens at the server: who is asked, on which terms, how the answers are added up, and what
is released.
"""
