"""Captures: connections and their KPIs."""
