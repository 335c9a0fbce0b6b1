"""What the ranks of a run share: process groups, random states, checks of equal values, and one error for all."""
