"""Hospitals predict heart disease together: a Flower app as there are many."""
