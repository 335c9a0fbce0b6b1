"""The search for the best configuration of a model on a cluster, and for the best machines."""
