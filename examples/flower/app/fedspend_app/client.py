"""A node."""

from fedspend.flower.client_app import client_app

app = client_app()
