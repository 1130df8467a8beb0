"""Where random numbers come from, and the noise made from them."""
