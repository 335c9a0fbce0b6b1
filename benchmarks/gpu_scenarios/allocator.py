"""Train with an allocator that is not torch's: allocator.py. Needs a C compiler."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch
from _parts import loader, network, train

SOURCE = """
#include <stddef.h>
extern int cudaMalloc(void **, size_t);
extern int cudaFree(void *);
void *take(ptrdiff_t size, int device, void *stream) { void *p = 0; cudaMalloc(&p, size); return p; }
void give(void *p, ptrdiff_t size, int device, void *stream) { cudaFree(p); }
"""

with tempfile.TemporaryDirectory() as folder:
    source, library = Path(folder) / "allocator.c", Path(folder) / "allocator.so"
    source.write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(library), str(source)], check=True)
    ctypes.CDLL(str(library))
    torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(str(library), "take", "give"))
model = network()
print(train(model, torch.optim.SGD(model.parameters(), lr=0.1), loader(1600, num_workers=2, pin_memory=True)))
