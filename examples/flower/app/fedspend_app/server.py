"""The server."""

from fedspend.flower.server_app import server_app

app = server_app()
