"""What happens at the server: who is asked, on which terms, what the answers add up to, and what is
released of them.
"""
