"""The lab: an emulated Internet in network namespaces."""
