"""Predictions of how much memory, time and money a training needs, before any machine is rented.

`models` describes the model that is trained. `cost` predicts memory, time and money by formula, many configurations at
once. `search` finds the best configuration and machines. `calibrate` measures a machine and predicts how a program runs
on that machine. `validate` compares predictions with published measurements.
"""
