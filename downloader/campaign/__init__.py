"""What is to be measured: the campaign file, its configurations, targets and plan. Nothing here touches the network."""
