"""Routes, namespaces and the path emulator of a lab."""
