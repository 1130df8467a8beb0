"""Who vouches for a run or a publication: Ed25519 keys (`keys`) and signatures (`signatures`); and
`commitments`, which hide and bind.
"""
