"""Where random numbers come from, and the noise that is made of them."""
