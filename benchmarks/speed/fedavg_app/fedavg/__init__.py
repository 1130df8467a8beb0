"""Flower's FedAvg with torch, as a Flower user writes it. It does not know of fedspend."""
