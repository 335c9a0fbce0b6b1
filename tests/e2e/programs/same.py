"""A program of many scenes that tells all it can see of itself: run bare and watched, it must print the same.

Each scene seeds everything, does something that training programs do, and yields what it saw; one line of JSON per
scene goes to stdout. What is told must not depend on time, process ids or addresses.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import io
import json
import multiprocessing
import os
import pickle
import random
import sys
import threading
import time
import traceback
import warnings
import weakref

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

SCENES = {}


def scene(function):
    SCENES[function.__name__] = function
    return function


def digest(data):
    return hashlib.sha256(data if isinstance(data, bytes) else repr(data).encode()).hexdigest()[:16]


def random_state():
    return digest((random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))


def weights(module):
    return digest([(name, value.detach().tolist()) for name, value in module.state_dict().items()])


def saved(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return digest(buffer.getvalue())


def seed():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def small():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))


def pairs(count=64):
    return TensorDataset(torch.randn(count, 8), torch.randn(count, 1))


def train(model, loader, optimizer, epochs=2):
    """Return the loss of every step, to the last bit."""
    losses = []
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
    return losses


class Noisy(Dataset):
    """Samples that tell which worker made them and draw random numbers there."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        info = get_worker_info()
        told = (-1, 0, 0) if info is None else (info.id, info.num_workers, info.seed % 1000003)
        drawn = [random.random(), np.random.random(), torch.rand(()).item()]
        return torch.full((8,), index / 32), torch.tensor([sum(drawn)]), torch.tensor(told)


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        step = 1 if info is None else info.num_workers
        for index in range(0 if info is None else info.id, 33, step):
            yield torch.full((8,), index / 33), torch.tensor([index / 7])


def noisy_run(**settings):
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, **settings)
    losses, workers = [], []
    for _ in range(2):
        for inputs, targets, told in loader:
            loss = functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
            workers.append(told[:, 0].tolist())
    return losses, workers, weights(model)


# ------------------------------------------------------------------------------------------- loops


@scene
def plain():
    model = small()
    yield train(model, DataLoader(pairs(), batch_size=8, shuffle=True), torch.optim.SGD(model.parameters(), 0.1))
    yield weights(model)


@scene
def iterators():
    for settings in ({}, {"num_workers": 1}):
        loader = DataLoader(pairs(20), batch_size=8, **settings)
        iterator = iter(loader)
        yield type(iterator).__module__, type(iterator).__qualname__, len(iterator), len(loader), type(loader).__name__
        yield isinstance(iterator, torch.utils.data.dataloader._BaseDataLoaderIter), iter(iterator) is iterator
        yield [len(batch[0]) for batch in iterator], next(iterator, "over")
        yield sorted(vars(iterator)), sorted(vars(loader))
    yield type(iter(DataLoader(Stream(), batch_size=None))).__name__

    class Own(DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                yield batch[0] * 2

    own = iter(Own(pairs(8), batch_size=4))
    yield type(own).__name__, [b.sum().item().hex() for b in own]


@scene
def workers_forked():
    yield noisy_run(num_workers=2)


@scene
def workers_kept():
    yield noisy_run(num_workers=2, persistent_workers=True, prefetch_factor=1)


@scene
def workers_spawned():
    yield noisy_run(num_workers=2, multiprocessing_context="spawn", persistent_workers=True)


@scene
def workers_none():
    yield noisy_run()


@scene
def streamed():
    for count in (0, 2):
        model = small()
        yield train(model, DataLoader(Stream(), batch_size=4, num_workers=count), torch.optim.Adam(model.parameters()))


@scene
def closure():
    model, (inputs, targets) = small().eval(), pairs().tensors
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    calls = []

    def evaluate():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), targets)
        loss.backward()
        calls.append(loss.item().hex())
        return loss

    for _ in range(4):
        optimizer.step(evaluate)
    yield calls


@scene
def two_models():
    maker, judge = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    makes, judges = (torch.optim.Adam(m.parameters(), 1e-3) for m in (maker, judge))
    losses = []
    for real, _ in DataLoader(pairs(), batch_size=8):
        fake = maker(torch.randn(len(real), 4))
        judges.zero_grad()
        doubt = functional.softplus(-judge(real)).mean() + functional.softplus(judge(fake.detach())).mean()
        doubt.backward()
        judges.step()
        makes.zero_grad()
        fooled = functional.softplus(-judge(fake)).mean()
        fooled.backward()
        makes.step()
        losses += [doubt.item().hex(), fooled.item().hex()]
    yield losses


@scene
def accumulation():
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    losses = []
    for number, (inputs, targets) in enumerate(DataLoader(pairs(), batch_size=4)):
        loss = functional.mse_loss(model(inputs), targets) / 4
        loss.backward()
        losses.append(loss.item().hex())
        if number % 4 == 3:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            losses.append(norm.item().hex())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    yield losses, weights(model)


@scene
def mixed_precision():
    for enabled in (False, True):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        losses = []
        for inputs, targets in DataLoader(pairs(), batch_size=8):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.mse_loss(model(inputs).float(), targets)
            scaled = scaler.scale(loss)
            scaled.backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            losses += [loss.item().hex(), (scaled is loss), scaler.get_scale()]
        yield losses


@scene
def by_hand():
    weight = torch.randn(8, 1, requires_grad=True)
    losses = []
    for inputs, targets in DataLoader(pairs(), batch_size=8):
        loss = functional.mse_loss(inputs @ weight, targets)
        (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
        (curve,) = torch.autograd.grad(slope.sum(), weight)
        with torch.no_grad():
            weight -= 0.1 * slope + 0.001 * curve
        losses.append(loss.item().hex())
    yield losses


@scene
def evaluated():
    model, loader = small(), DataLoader(pairs(), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        yield train(model, loader, optimizer, epochs=1)
        model.eval()
        with torch.inference_mode():
            yield [model(inputs).sum().item().hex() for inputs, _ in loader]
        model.train()


@scene
def threads():
    results = {}

    def work(name):
        generator = torch.Generator().manual_seed(1)
        weight = torch.zeros(8, 1, requires_grad=True)
        layer = nn.Linear(8, 1, bias=False)
        with torch.no_grad():
            layer.weight.zero_()
        optimizer = torch.optim.SGD([weight, *layer.parameters()], 0.1)
        losses = []
        for _ in range(30):
            inputs = torch.randn(4, 8, generator=generator)
            optimizer.zero_grad()
            loss = ((inputs @ weight + layer(inputs) - 1) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        results[name] = losses

    for names in (["one"], ["left", "right"]):
        running = [threading.Thread(target=work, args=(name,)) for name in names]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    yield results["one"], results["left"] == results["one"] == results["right"]


# ------------------------------------------------------------------------------------------- compilers


def step_with(function, model):
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for inputs, targets in DataLoader(pairs(), batch_size=8):
        optimizer.zero_grad()
        loss = functional.mse_loss(function(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def compiled_frames():
    from torch._dynamo.utils import counters

    told = (
        dict(counters["stats"]),
        len(counters["graph_break"]),
        counters["frames"]["total"] == counters["frames"]["ok"],
    )
    counters.clear()
    torch._dynamo.reset()
    return told


@scene
def compiled():
    for backend in ("eager", "aot_eager"):
        model = small()
        wrapped = torch.compile(model, backend=backend)
        yield backend, type(wrapped).__name__, step_with(wrapped, model), compiled_frames()
        model = small()
        model.compile(backend=backend)
        yield step_with(model, model), compiled_frames()


@scene
def compiled_whole():
    heard = []
    model = small().eval()
    model[0].register_forward_hook(lambda module, args, out: out * 1.0)

    def run(inputs):
        return model(inputs) * 2

    for enclosed in (run, model):
        fast = torch.compile(enclosed, backend="eager", fullgraph=True)
        yield step_with(fast, model), compiled_frames()
    model.register_forward_pre_hook(lambda module, args: heard.append(1))
    yield step_with(torch.compile(run, backend="aot_eager"), model), len(heard) > 0, compiled_frames()
    explained = torch._dynamo.explain(run)(torch.ones(2, 8))
    yield explained.graph_count, explained.graph_break_count, [g.code for g in explained.graphs]
    compiled_frames()


@scene
def compiled_optimizer():
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    step = torch.compile(optimizer.step, backend="eager")
    losses = []
    for inputs, targets in DataLoader(pairs(), batch_size=8):
        loss = functional.mse_loss(model(inputs), targets)
        loss.backward()
        step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    yield losses, weights(model), compiled_frames()


@scene
def compiled_step():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    @torch.compile(backend="eager")
    def step(inputs, targets):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    yield [step(x, y).item().hex() for x, y in DataLoader(pairs(), batch_size=8)], compiled_frames()


@scene
def traced():
    model, inputs = small().eval(), torch.ones(2, 8)
    yield torch.fx.symbolic_trace(model).code
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jit = torch.jit.trace(model, inputs)
        yield digest(str(jit.graph)), jit(inputs).sum().item().hex()
        yield digest(str(torch.jit.script(model).graph))
    for strict in (False, True):
        yield torch.export.export(model, (inputs,), strict=strict).graph_module.code
    yield compiled_frames()


@scene
def transforms():
    model, inputs, targets = small().eval(), *pairs(6).tensors
    parameters = dict(model.named_parameters())

    def loss(values, one, target):
        return functional.mse_loss(torch.func.functional_call(model, values, (one.unsqueeze(0),)), target.unsqueeze(0))

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, inputs, targets)
    yield digest({name: value.tolist() for name, value in each.items()})

    def grad_inside(one):
        one = one.clone().requires_grad_()
        return torch.autograd.grad((one**3).sum(), one)[0]

    yield torch.func.vmap(model)(inputs).sum().item().hex()
    yield torch.func.jacrev(model)(inputs[0]).tolist()
    yield torch.func.jvp(lambda x: model(x).sum(), (inputs,), (inputs,))[1].item().hex()
    yield torch.autograd.functional.hessian(lambda x: model(x).sum() ** 2, inputs[0]).sum().item().hex()
    vector = torch.autograd.grad(
        model(inputs), list(model.parameters()), torch.eye(6).unsqueeze(-1), is_grads_batched=True
    )
    yield [v.sum().item().hex() for v in vector]
    yield grad_inside(inputs).sum().item().hex()


# ------------------------------------------------------------------------------------------- objects


@scene
def objects():
    model, loader = small(), DataLoader(pairs(), batch_size=8)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, loader, optimizer, epochs=1)
    for thing in (model, optimizer, loader, model.state_dict(), optimizer.state_dict(), [model, optimizer, loader]):
        yield type(thing).__name__, saved(thing), saved(copy.deepcopy(thing)), saved(pickle.loads(pickle.dumps(thing)))
    yield sorted(vars(model)), sorted(vars(optimizer)), sorted(vars(loader))
    for function in (torch.save, nn.utils.clip_grad_norm_, DataLoader.__iter__, torch.distributed.all_reduce):
        yield pickle.loads(pickle.dumps(function)) is function, function.__module__, function.__qualname__


@scene
def hooks():
    heard = []
    model = small()
    model.register_forward_pre_hook(lambda module, args: heard.append("before"))
    model[0].register_forward_hook(lambda module, args, out: heard.append("inner"))
    model.register_forward_hook(lambda module, args, out: heard.append("after"))
    model.register_full_backward_hook(lambda module, before, after: heard.append("backward"))
    every = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: heard.append(type(module).__name__)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: heard.append("step"))
    optimizer.register_step_post_hook(lambda optimizer, args, kwargs: heard.append("stepped"))
    yield train(model, DataLoader(pairs(16), batch_size=8), optimizer), heard
    every.remove()


@scene
def freed():
    model, loader = small(), DataLoader(pairs(), batch_size=8)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, loader, optimizer, epochs=1)
    inputs = torch.ones(4, 8)
    loss = model(inputs).sum()
    loss.backward()
    iterator = iter(loader)
    next(iterator)
    watched = [weakref.ref(o) for o in (model, optimizer, loader, inputs, loss, iterator, model[0].weight)]
    del model, loader, optimizer, inputs, loss, iterator
    yield [ref() is None for ref in watched]
    gc.collect()
    yield [ref() is None for ref in watched], len(gc.garbage)


class Told(torch.Tensor):
    """A tensor that notes what is done to it."""

    heard: list[str] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.heard.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})


@scene
def overheard():
    """Every operation that a mode or a tensor subclass can hear of."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    heard = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            heard.append(getattr(function, "__name__", str(function)))
            return function(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            heard.append(str(function))
            return function(*args, **(kwargs or {}))

    model = small().eval()
    for mode in (Functions, Operators):
        scaler = torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with mode():
            for inputs, _ in DataLoader(pairs(16), batch_size=8):
                loss = model(inputs).sum()
                scaler.scale(loss).backward()
                optimizer.step()
        yield digest(heard), len(heard), heard[-8:]
        heard.clear()
    model(torch.ones(2, 8).as_subclass(Told)).sum().backward()
    for batch in DataLoader([torch.ones(3).as_subclass(Told)] * 2, batch_size=2, collate_fn=lambda b: b[0]):
        model(batch.repeat(3)[:8])
    yield Told.heard


@scene
def profiled():
    """The program profiles itself, also while Paceline's own window is open."""
    model, loader = small().eval(), DataLoader(pairs(), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        train(model, loader, optimizer, epochs=1)
        time.sleep(0.06)
    batches = iter(loader)
    for _ in range(4):
        inputs, targets = next(batches)
        with torch.profiler.profile() as profile:
            optimizer.zero_grad()
            functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        yield sorted({(e.key, e.count) for e in profile.key_averages() if not e.key.startswith("ProfilerStep")})
    with torch.autograd.profiler.profile() as old:
        functional.mse_loss(model(inputs), targets).backward()
    yield sorted({e.key for e in old.key_averages()})


# ------------------------------------------------------------------------------------------- faults of the user's


class Fails(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, inputs):
        if self.inner is not None:
            return self.inner(inputs)
        raise ValueError("forward fails")


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("backward fails")


class FailsAt(Dataset):
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            raise self.error("item fails")
        return torch.ones(2)


def failing_collate(samples):
    raise LookupError("collate fails")


def failing_step():
    raise OverflowError("step fails")


@scene
def tracebacks():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    infinite = nn.Parameter(torch.ones(1))
    infinite.grad = torch.full((1,), float("inf"))
    failures = {
        "forward": lambda: Fails()(torch.ones(1)),
        "inner forward": lambda: Fails(Fails())(torch.ones(1)),
        "backward": lambda: FailsBackward.apply(model(torch.ones(2))).sum().backward(),
        "grad": lambda: torch.autograd.grad(FailsBackward.apply(model(torch.ones(2))).sum(), [model.weight]),
        "item": lambda: list(DataLoader(FailsAt(ValueError), batch_size=2)),
        "interrupt": lambda: list(DataLoader(FailsAt(KeyboardInterrupt), batch_size=2)),
        "item in a worker": lambda: list(DataLoader(FailsAt(ValueError), batch_size=2, num_workers=1)),
        "collate": lambda: list(DataLoader(pairs(), batch_size=2, collate_fn=failing_collate)),
        "collate in a worker": lambda: list(DataLoader(pairs(), num_workers=1, collate_fn=failing_collate)),
        "sampler": lambda: list(DataLoader(pairs(), sampler=(x for x in "wrong"))),
        "closure": lambda: optimizer.step(failing_step),
        "save": lambda: torch.save(model, "/nowhere/at/all"),
        "save lambda": lambda: torch.save(lambda: 0, io.BytesIO()),
        "clip": lambda: nn.utils.clip_grad_norm_([infinite], 1.0, error_if_nonfinite=True),
        "arguments": lambda: model(torch.ones(3)),
        "no parameters": lambda: nn.ReLU()("not a tensor"),
        "optimizer": lambda: torch.optim.SGD([], 0.1),
        "group": lambda: torch.distributed.all_reduce(torch.ones(1)),
    }
    for name, failure in failures.items():
        try:
            failure()
        except BaseException:
            yield name, traceback.format_exc().splitlines()


@scene
def strict_warnings():
    """Warnings are errors here: none may come from the watcher."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = small()
        yield train(model, DataLoader(pairs(), batch_size=8, num_workers=2), torch.optim.Adam(model.parameters()))
        torch.save(model.state_dict(), io.BytesIO())
    yield [str(f) for f in warnings.filters]


# ------------------------------------------------------------------------------------------- the interpreter


def square(number):
    return number * number


@scene
def pools():
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            yield pool.map(square, range(20))


@scene
def interpreter():
    yield [thread.name for thread in threading.enumerate() if thread.name != "QueueFeederThread"]
    yield sys.path, sys.argv, __file__, sys.flags.interactive, sys.getrecursionlimit()
    yield "sitecustomize" in sys.modules, sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile()
    yield sorted(key for key in os.environ if not key.startswith("PACELINE_") and key != "PYTHONPATH")
    yield [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and "/paceline/" not in p]
    yield gc.get_threshold(), gc.isenabled(), torch.get_num_threads(), torch.get_num_interop_threads()
    import signal

    yield [
        str(signal.getsignal(s)).partition(" at ")[0]
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)
    ]
    yield sorted(str(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, []))
    yield os.getcwd(), os.umask(0o022)


def main():
    wanted = sys.argv[1:] or list(SCENES)
    for name in wanted:
        seed()
        try:
            told = list(SCENES[name]())
        except Exception:
            told = ["the scene failed", traceback.format_exc()]
        print(json.dumps({"scene": name, "told": told, "random": random_state()}), flush=True)


if __name__ == "__main__":
    main()
