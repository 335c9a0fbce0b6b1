"""What can this machine do? Micro-benchmarks in processes of their own, and the profile that they make."""
