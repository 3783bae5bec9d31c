"""The commands, a module each, named as they are typed."""
