"""What a config file may say, and the parts that are made from it."""
