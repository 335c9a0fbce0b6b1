"""Hardware data: tables of GPUs and cloud instances, and the cores, memory, control groups and system of this host."""
