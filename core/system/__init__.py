"""What stages use of the operating system: processes and places."""
