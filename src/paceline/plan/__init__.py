"""Predictions of the memory, time and money that a training takes, before any machine is rented.

`models` describes what is trained. `cost` predicts memory, time and money by formula, many configurations at once.
`search` finds the best configuration and machines. `calibrate` measures a machine and predicts a program on it.
`validate` compares predictions with published measurements.
"""
