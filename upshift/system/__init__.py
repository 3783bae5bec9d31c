"""What a stage may ask of the machine: start a process, use a place."""
