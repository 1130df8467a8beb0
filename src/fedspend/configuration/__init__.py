"""What a config file may say, and what is made from it."""
