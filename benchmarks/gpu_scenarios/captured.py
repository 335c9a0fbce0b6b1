"""Train while steps are captured, and start a process afterwards: captured.py"""

import os
import subprocess
import sys

import torch
from _parts import loader, network, tell_memory, train

model = network()
optimizer = torch.optim.AdamW(model.parameters())
print(train(model, optimizer, loader(640, num_workers=2)))
asks = "import os; print(sorted(name for name in os.environ if 'KINETO' in name))"
print(subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True).stdout)
print(train(model, optimizer, loader(320, num_workers=2)), sorted(name for name in os.environ if "KINETO" in name))
tell_memory()
