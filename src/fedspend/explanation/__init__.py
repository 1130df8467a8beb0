"""Privacy in words that people understand: what an epsilon means, what leaving gives back, and what
the terms mean.
"""
