"""Loops as users write them; lines that make the input of the call marked ``# <-`` are marked ``#+``."""

from __future__ import annotations

import random
import sysconfig
import time
from pathlib import Path

import pytest

from paceline.inprocess.recorder.stacks.by_hand import parameter_free_lines
from paceline.inprocess.recorder.stacks.slicing import MODULE, feeds_itself, producing_lines


def sliced(source: str, call: int = 0) -> tuple[set[int], set[int]]:
    """The lines found and the lines marked, for the code that holds the call. ``#@`` marks its first line."""
    lines = source.splitlines()
    calls = [number for number, line in enumerate(lines, 1) if "# <-" in line]
    first = next((number for number, line in enumerate(lines, 1) if "#@" in line), MODULE)
    marked = {number for number, line in enumerate(lines, 1) if "#+" in line}
    return set(producing_lines(source, first, calls[call])), marked


LOOPS = {
    "a reader written by hand before the forward": """
import torch
model = Net()
for step in range(100):  #+
    rows = read(step)  #+
    x = torch.tensor(rows)  #+
    loss = model(x).mean()  # <-
    loss.backward()
    optimizer.step()
    history.append(loss.item())
""",
    "logging between a step and the next forward": """
for step, (x, y) in enumerate(loader):  #+
    if step % 10 == 0:
        norms = [p.norm() for p in model.parameters()]
        print(norms, len(x))
        writer.add_scalar("loss", total / (step + 1))
    x = x.to(device)  #+
    out = model(x)  # <-
    total += loss.item()
""",
    "a step in a function: the inner frame": """
def train_step(batch):  #@
    model.train()
    x, y = batch["x"], batch["y"]  #+
    noise = torch.randn_like(x)  #+
    metrics.update(y)
    out = model(x + noise)  # <-
    return criterion(out, y)
""",
    "a step in a function: the outer frame": """
def main():  #@
    trainer = Trainer()
    for step in range(100):  #+
        batch = make_batch(step)  #+
        loss = trainer.train_step(batch)  # <-
        trainer.summarise(loss)
        trainer.log_metrics(loss)
""",
    "an object that makes batches and reports": """
while not exp.done():
    batch = exp.sample(32)  #+
    loss = exp.update(batch)  # <-
    exp.log(loss)
    exp.save_if_best()
    exp.evaluate()
""",
    "a walrus": """
while (chunk := stream.read(1024)):  #+
    ids = tokenize(chunk)  #+
    out = model(ids)  # <-
    print(out)
""",
    "with blocks": """
for path in paths:  #+
    with open(path, "rb") as file:  #+
        data = decode(file.read())  #+
    with torch.autocast("cpu"), timer.section("forward"):
        out = model(data)  # <-
    with open("log.txt", "a") as log:
        log.write(str(out))
""",
    "attributes of self": """
class Trainer:
    def fit(self):  #@
        self.seen = 0
        for self.index in range(100):  #+
            self.images = self.load(self.index)  #+
            self.labels = self.label(self.index)
            self.out = self.model(self.images)  # <-
            self.write(self.out)
            self.history.append(self.labels)
""",
    "a generator in the head of a for": """
def batches(paths):
    for path in paths:
        yield read(path)

for batch in (augment(b) for b in batches(paths)):  #+
    out = net(batch)  # <-
    print("done", flush=True)
""",
    "semicolons": """
for i in range(10):  #+
    a = read(i); b = 2  #+
    c = a * 2; d = log(b)  #+
    out = model(c)  # <-
    e = plot(out); f = 3
""",
    "a decorated function": """
@app.command()  #@
@torch.no_grad()
def main(path):
    data = load(path)  #+
    config = parse(path)
    out = model(data)  # <-
    show(config)
""",
    "a function in a function": """
def main():
    def step(index):  #@
        x = read(index)  #+
        y = describe(index)
        return model(x)  # <-
    x = something_else()
    step(3)
""",
    "lambdas and comprehensions": """
make = lambda i: torch.full((2,), i)
for i in range(9):  #+
    rows = [make(j) for j in range(i)]  #+
    key = lambda row: row.sum()  #+
    rows.sort(key=key)  #+
    table = sorted(history, key=lambda h: h.loss)
    out = model(torch.stack(rows))  # <-
""",
    "try and except": """
for name in names:  #+
    try:
        record = fetch(name)  #+
    except OSError as error:
        record = cached(name)  #+
        errors.append(error)
    else:
        counts[name] = 1
    finally:
        tidy(name)
    out = model(record)  # <-
""",
    "match": """
for event in stream:  #+
    match event:  #+
        case {"image": pixels}:
            x = decode(pixels)  #+
        case ("text", words):
            x = embed(words)  #+
        case _:
            report(event)
    out = model(x)  # <-
""",
    "tuples, stars and indexes": """
for step in range(9):  #+
    first, *rest = take(step)  #+
    buffer[0] = first  #+
    (a, b), c = parts(rest)
    names[1] = c
    out = model(buffer)  # <-
""",
    "changed through methods": """
rows = []  #+
total = []
for i in range(9):  #+
    rows.append(read(i))  #+
    noise = torch.empty(3)  #+
    noise.normal_().mul_(2)  #+
    rows[0].add_(1)  #+
    total.append(i)
    out = model(torch.stack(rows), noise.to(device))  # <-
""",
    "a replay buffer": """
for step in range(100):
    action = agent.act(state)  #+
    state, reward = env.step(action)  #+
    replay.add(state, reward)  #+
    returns.append(reward)
    batch = replay.sample(32)  #+
    loss = agent.learn(batch)  # <-
""",
    "keywords and stars in the call": """
batch = collate(rows)  #+
rest = options(rows)  #+
other = 3
out = model(**batch, mask=rest)  # <-
""",
    "a call over several lines": """
mean = first(
    source,
)
x = second(  #+
    source,  #+
)  #+
out = criterion(
    model(x),  # <-
    target,
)
""",
    "names that only share a prefix": """
data.x = read()  #+
data_x = read()
data.xs = read()
out = model(data.x)  # <-
""",
    "async": """
async def main():  #@
    async for batch in feed():  #+
        async with session() as s:  #+
            extra = await s.get(1)  #+
        out = await model(batch, extra)  # <-
        await log(out)
""",
    "the first line of a file is a function": """def main():  # line 1
    x = wrong()

y = right()  #+
model(y)  # <-
main()
""",
}


@pytest.mark.parametrize("name", LOOPS)
def test_producing_lines(name):
    source = LOOPS[name]
    lines = source if source.startswith("def") else source.removeprefix("\n")
    found, marked = sliced(lines)
    assert found == marked


LOSSES = {
    "plain": """
for x, y in loader:  #+
    out = model(x)  #+
    loss = criterion(out, y)  #+
    accuracy = (out.argmax(1) == y).float().mean()
    loss.backward()  # <-
""",
    "a tensor's backward with keywords": """
out = model(x)  #+
weight = ones()  #+
other = zeros()
out.backward(gradient=weight, retain_graph=True)  # <-
""",
    "scaled": """
with autocast():
    loss = criterion(model(x), y)  #+
scaler.update()
scaler.scale(loss).backward()  # <-
""",
    "divided": """
loss = criterion(model(x), y)  #+
loss = loss + penalty(model)  #+
log = describe(loss)
(loss / 4).backward()  # <-
""",
    "through an accelerator": """
loss = criterion(model(x), y)  #+
accelerator.prepare_once()
accelerator.print(loss)
accelerator.backward(loss)  # <-
""",
}


@pytest.mark.parametrize("name", LOSSES)
def test_lines_that_make_a_loss(name):
    found, marked = sliced(LOSSES[name])
    assert found == marked


@pytest.mark.parametrize("source", ["def broken(:", "", "x = (", "\0", "\ufeffx = 1"])
def test_what_cannot_be_parsed_has_no_lines(source):
    assert producing_lines(source, MODULE, 1) == frozenset()


def test_a_line_that_is_not_there():
    assert producing_lines("x = 1\nf(x)\n", MODULE, 99) == frozenset()
    assert producing_lines("x = 1\nf(x)\n", 77, 2) == frozenset()


def test_nesting_beyond_what_python_can_walk():
    deep = "x = " + "(" * 80 + "y" + ")" * 80 + "\nf(x)\n"
    assert producing_lines(deep, MODULE, 2) == {1}
    chain = "x = y" + ".a()" * 3000 + "\nf(x)\n"
    assert producing_lines(chain, MODULE, 2) in (frozenset(), {1})


def test_any_line_of_the_standard_library():
    """Never raises, and never takes long: it runs in the watched program."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    draw = random.Random(7)
    begun = time.process_time()
    tried = 0
    for path in draw.sample(files, len(files)):
        source = path.read_text(encoding="utf-8", errors="replace")
        lines = source.splitlines()
        starts = [n for n, line in enumerate(lines, 1) if line.lstrip().startswith(("def ", "async def ", "@"))]
        for first in (MODULE, *draw.sample(starts, min(2, len(starts)))):
            found = producing_lines(source, first, draw.randint(1, max(1, len(lines))))
            assert found <= set(range(1, len(lines) + 2))
            tried += 1
        if time.process_time() - begun > 2:
            break
    assert tried > 15


def test_a_huge_module_takes_less_than_a_second():
    source = "\n".join(f"x{i + 1} = f(x{i})" for i in range(4000)) + "\ng(x4000)\n"
    begun = time.process_time()
    found = producing_lines(source, MODULE, 4001)
    assert time.process_time() - begun < 3
    assert len(found) == 4000


FED = """
def rollout(policy, env, state):
    for _ in range(9):
        action = policy(state)
        state, reward = env.step(action)

def validation(model, batches):
    for x in batches:
        out = model(x)
        total = out.sum()

def recurrent(model, batches, hidden):
    for x in batches:
        out, hidden = model(x, hidden)
"""


@pytest.mark.parametrize("line, fed", [(4, True), (9, False), (14, False)])
def test_whether_the_output_makes_the_next_input(line, fed):
    first = {4: 2, 9: 7, 14: 12}[line]
    assert feeds_itself(FED, first, line) is fed


OPTIMIZED = """
import torch
weights = {"a": torch.zeros(3)}
def network(x):
    return x @ weights["a"]
optimizer = torch.optim.SGD(weights.values(), lr=0.1)
for step in range(9):
    x = read(step)
    loss = network(x)
    loss.backward()
    optimizer.step()
"""


def test_data_of_a_model_without_modules():
    """The weights are known by the optimizer that gets them; a function that uses them computes."""
    lines = producing_lines(OPTIMIZED, MODULE, 10)
    assert {8, 9} <= lines
    free = parameter_free_lines(OPTIMIZED, MODULE, lines)
    assert 8 in free
    assert 9 not in free
