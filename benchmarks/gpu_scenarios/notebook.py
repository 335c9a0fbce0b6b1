"""Train in the cells of a notebook, whose kernel is a process of its own: notebook.py. Needs nbclient and ipykernel."""

import os

import nbformat
from nbclient import NotebookClient

HERE = os.path.dirname(os.path.abspath(__file__))
CELLS = [
    f"import sys; sys.path.insert(0, {HERE!r})\nimport torch\nfrom _parts import *",
    "model = network()\noptimizer = torch.optim.AdamW(model.parameters())",
    "print(train(model, optimizer, loader(640, num_workers=2, pin_memory=True)))",
    "1 / 0",
    "print(train(model, optimizer, loader(640)))",
    "tell_memory()",
]

notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
NotebookClient(notebook, timeout=120, allow_errors=True, kernel_name="python3").execute()
for cell in notebook.cells:
    for output in cell.outputs:
        print(output.get("text", output.get("ename", "")), end="")
