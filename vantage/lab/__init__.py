"""The lab: an emulated Internet of network namespaces, a path emulator, real servers and real DNS."""
