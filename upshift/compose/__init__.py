"""Puts stages and places together; only this package and upshift.cli import them."""
