"""Privacy in plain words: what an epsilon means, what leaving gives back, and a glossary."""
