"""How many bytes of a weight does an optimizer keep between steps? Moments in fp32, but for those made smaller."""

from __future__ import annotations

BYTES = {
    "adamw": 8.0,
    "adam": 8.0,
    "adam-8bit": 2.0,
    "lion": 4.0,
    "muon": 4.0,
    "sgd-momentum": 4.0,
    "adafactor": 0.1,  # rows and columns in place of a matrix
    "sgd": 0.0,
}
USUAL = "adamw"
