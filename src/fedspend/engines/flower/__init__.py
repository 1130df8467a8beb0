"""Clients on other machines, reached through Flower: `wire` is what is sent, `nodes` says which
machine is which client, `engine` runs a round. Only these modules and the room `flower` import
flwr, and nothing imports them before it is needed.
"""
