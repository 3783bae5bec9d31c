"""Addresses -> AS, organisation and provider, by routing tables."""
