"""The same training on several machines: the apps that Flower starts. `node` is one client on its
own machine, `client_app` and `server_app` are what Flower calls, `loopback` tries it all on one.
"""
