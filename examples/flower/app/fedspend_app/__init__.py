"""What Flower sends to the nodes: two lines that call the fedspend that is installed there."""
