"""What a training configuration costs, by formula: memory, time per step, FLOPs and money."""
