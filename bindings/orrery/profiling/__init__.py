"""Measuring an engine that runs elsewhere: which requests to send it, and sending them."""
