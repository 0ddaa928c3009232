"""Temperatures for the confidence head: outcomes recorded in cap-accept, STS, held-out report."""
