"""Trials: run the user's program under a recipe, step by step, isolated from files and services."""
