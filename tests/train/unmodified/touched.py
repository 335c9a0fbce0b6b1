"""Programs that touch weights, gradients and optimizer state outside of calls of the model.

    python touched.py NAME ...

For each name one line: numbers, or the exit code of a refusal.
"""

from __future__ import annotations

import copy
import gc
import io
import json
import logging
import math
import os
import sys
import threading
import weakref

import torch
from torch import nn
from torch.nn import functional

G = torch.Generator().manual_seed(1)
X = torch.randn(96, 12, generator=G)
Y = (X.sum(1) > 0).long() + (X[:, 0] > 0).long()
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 15), nn.Tanh(), nn.Linear(15, 3))


def cross(model, rows, target):
    return functional.cross_entropy(model(rows), target)


def fit(model, steps=4, after=None, before=None, optimizer=None, loss_of=cross):
    """Train; `before` acts on gradients, `after` on what a step has left."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        place = step * 8 % 80
        loss = loss_of(model, X[place : place + 8], Y[place : place + 8])
        optimizer.zero_grad()
        loss.backward()
        if before is not None:
            before(model)
        optimizer.step()
        losses.append(loss.item())
        if after is not None:
            after(model)
    return [*losses, *weights(model)]


def weights(model):
    total = sum(weight.detach().double().abs().sum().item() for weight in model.parameters())
    first = next(weight.detach() for weight in model.parameters() if weight.dim() == 2)
    return [total, float(first[0, 0]), float(first[-1, -1])]


def no_grad(function):
    return torch.no_grad()(function)


def touching(name, after=None, before=None):
    CASES[name] = lambda: fit(mlp(), after=after and no_grad(after), before=before and no_grad(before))


def scale_data(model):
    for weight in model.parameters():
        weight.data = weight.data * 0.5


def scale_under_no_grad(model):
    for weight in model.parameters():
        weight *= 0.5


def clamp_data(model):
    for weight in model.parameters():
        weight.data.clamp_(-0.1, 0.1)


def write_rows(model):
    model[0].weight[0] = 0.25
    model[2].weight.data[:, 1] = 0.5
    model[0].bias[3:7].fill_(1.0)


def write_mask(model):
    model[0].weight.masked_fill_(model[0].weight < 0, 0.01)
    model[2].weight.data[model[2].weight.data > 0.1] = 0.1


def multiply_by_plain_mask(model):
    mask = (torch.arange(12 * 15).view(15, 12) % 3 > 0).float()
    model[0].weight.mul_(mask)
    model[2].weight.data = model[2].weight.data * mask[:3, :].repeat(1, 2)[:, :15]


def add_plain_noise(model):
    for weight in model.parameters():
        weight.add_(torch.randn(weight.shape) * 0.01)


def add_noise_like(model):
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight) * 0.01)


def draw_anew(model):
    nn.init.normal_(model[2].weight, std=0.1)
    nn.init.xavier_uniform_(model[0].weight)
    model[0].bias.uniform_(-0.1, 0.1)


def draw_by_reset(model):
    model[2].reset_parameters()


def draw_for_rows(model):
    dead = model[0].weight.norm(dim=1) < model[0].weight.norm(dim=1).median()
    model[0].weight[dead] = torch.randn(int(dead.sum()), 12) * 0.1


def normalise_rows(model):
    weight = model[0].weight
    weight.div_(weight.norm(dim=1, keepdim=True))


def normalise_by_function(model):
    model[0].weight.data = functional.normalize(model[0].weight.data, dim=0)


def orthogonal_rows(model):
    left, _, right = torch.linalg.svd(model[0].weight.detach(), full_matrices=False)
    model[0].weight.copy_(left @ right)


def largest_kept(model):
    flat = model[0].weight.flatten()
    limit = flat.abs().kthvalue(60).values
    model[0].weight.mul_((model[0].weight.abs() >= limit).float())


def prune_by_sort(model):
    every = torch.cat([weight.flatten().abs() for weight in model.parameters()])
    limit = every.sort().values[len(every) // 4]
    for weight in model.parameters():
        weight.masked_fill_(weight.abs() < limit, 0.0)


def sum_of_numpy(model):
    model[0].bias.add_(float(model[0].weight.detach().cpu().numpy().std()) * 0.01)


def vector_and_back(model):
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 0.9, model.parameters())


def averaged_with_start(model):
    if not hasattr(averaged_with_start, "start"):
        averaged_with_start.start = [weight.detach().clone() for weight in model.parameters()]
    for weight, start in zip(model.parameters(), averaged_with_start.start, strict=True):
        weight.lerp_(start, 0.1)


def state_dict_edited(model):
    state = model.state_dict()
    state["0.weight"] *= 0.5
    state["2.bias"] = state["2.bias"] + 1
    model.load_state_dict(state)


def clip_by_hand(model):
    total = sum(weight.grad.data.norm(2).item() ** 2 for weight in model.parameters()) ** 0.5
    for weight in model.parameters():
        weight.grad.data.mul_(min(1.0, 0.1 / (total + 1e-6)))


def gradient_noise(model):
    for weight in model.parameters():
        weight.grad += 0.01 * torch.randn_like(weight.grad)


def gradient_noise_plain(model):
    for weight in model.parameters():
        weight.grad += 0.01 * torch.randn(weight.grad.shape)


def gradient_centred(model):
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.grad.add_(-weight.grad.mean(dim=1, keepdim=True))


def gradient_by_rows(model):
    model[0].weight.grad[:5] = 0
    model[0].weight.grad[7] *= 3


def gradient_replaced(model):
    for weight in model.parameters():
        weight.grad = weight.grad.sign() * 0.1


def gradient_set_none(model):
    model[0].bias.grad = None


def nan_replaced(model):
    for weight in model.parameters():
        torch.nan_to_num_(weight.grad, 0.0)
        if not torch.isfinite(weight.grad).all():
            weight.grad.zero_()


def every_norm_clipped(model):
    for weight in model.parameters():
        nn.utils.clip_grad_norm_(weight, 0.05)


def functions_of_numbers(model):
    model[0].weight.data.apply_(lambda value: value * 0.9)
    model[2].weight.data.map_(torch.full((3, 15), 0.01), lambda value, more: value + more)
    model.state_dict()["0.bias"].apply_(lambda value: value + 0.1)


def columns_in_use(model):
    used = (model[0].weight.abs() > 0.05).any(0)
    model[0].weight.mul_(used.float())
    model[2].weight.mul_(0.5 + 0.5 * (model[2].weight > 0).all(dim=0, keepdim=True).float())


for name in (
    *("scale_data", "scale_under_no_grad", "clamp_data", "write_rows", "write_mask", "multiply_by_plain_mask"),
    *("add_plain_noise", "add_noise_like", "draw_anew", "draw_by_reset", "draw_for_rows", "normalise_rows"),
    *("normalise_by_function", "orthogonal_rows", "largest_kept", "prune_by_sort", "sum_of_numpy"),
    *("vector_and_back", "averaged_with_start", "state_dict_edited", "functions_of_numbers", "columns_in_use"),
):
    touching(name, after=globals()[name])
for name in (
    *("clip_by_hand", "gradient_noise", "gradient_noise_plain", "gradient_centred", "gradient_by_rows"),
    *("gradient_replaced", "gradient_set_none", "nan_replaced", "every_norm_clipped"),
):
    touching(name, before=globals()[name])


def largest_shown(model):
    last = model[-1]
    last.bias.add_(0.01 * last.bias.max() + 0.01 * last.bias.item() - last.bias.flip(0).view(1, 1)[0])
    last.weight.sub_(0.01 * last.weight.amin() * last.weight.argmax().float())


@case
def fewer_outputs_than_ranks():
    """One rank has none of the elements of the last layer."""

    def squared(model, rows, target):
        return (model(rows).squeeze(1) - target.float()).square().mean()

    model = nn.Sequential(mlp(), nn.Linear(3, 1))
    return fit(model, after=no_grad(largest_shown), loss_of=squared)


@case
def penalty_in_the_loop():
    def loss(model, rows, target):
        found = cross(model, rows, target)
        found = found + 1e-2 * sum(weight.square().sum() for weight in model.parameters())
        return found + 1e-2 * (model[0].weight @ model[0].weight.T - torch.eye(15)).square().sum()

    return fit(mlp(), loss_of=loss)


@case
def lasso_before_the_call():
    def loss(model, rows, target):
        penalty = sum(weight.abs().sum() for name, weight in model.named_parameters() if "weight" in name)
        return cross(model, rows, target) + 1e-2 * penalty

    return fit(mlp(), loss_of=loss)


@case
def pull_to_the_start():
    model = mlp()
    start = [weight.detach().clone() for weight in model.parameters()]

    def loss(model, rows, target):
        pull = sum((weight - one).square().sum() for weight, one in zip(model.parameters(), start, strict=True))
        return cross(model, rows, target) + 0.1 * pull

    return fit(model, loss_of=loss)


@case
def shared_embedding_outside():
    torch.manual_seed(0)
    model = nn.ModuleDict({"table": nn.Embedding(10, 12), "net": nn.Linear(12, 12)})

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, tokens):
            return self.parts["net"](self.parts["table"](tokens))

    def loss(model, rows, target):
        tokens = (rows.abs() * 5).long().clamp(max=9)
        hidden = model(tokens)
        return functional.cross_entropy(hidden @ model.parts["table"].weight.T.mean(1, keepdim=True)[:, 0], target % 12)

    return fit(Model(), loss_of=loss)


@case
def average_by_hand_from_the_start():
    model = mlp()
    average = copy.deepcopy(model)

    def after(model):
        for one, other in zip(average.parameters(), model.parameters(), strict=True):
            one.mul_(0.9).add_(other.data, alpha=0.1)

    found = fit(model, after=no_grad(after))
    with torch.no_grad():
        return [*found, *weights(average), average.eval()(X).sum().item()]


@case
def average_by_hand_in_a_dictionary():
    model = mlp()
    shadow = {name: weight.clone().detach() for name, weight in model.named_parameters()}

    def after(model):
        for name, weight in model.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * weight.data

    found = fit(model, after=no_grad(after))
    kept = {name: weight.data.clone() for name, weight in model.named_parameters()}
    for name, weight in model.named_parameters():
        weight.data = shadow[name]
    with torch.no_grad():
        found.append(model.eval()(X).sum().item())
    for name, weight in model.named_parameters():
        weight.data = kept[name]
    return [*found, *fit(model.train())]


@case
def average_begun_later():
    model = mlp()
    found = fit(model)
    average = copy.deepcopy(model).eval()
    for weight in average.parameters():
        weight.requires_grad_(False)
    found += fit(
        model, after=no_grad(lambda m: [a.lerp_(b, 0.5) for a, b in zip(average.parameters(), m.parameters())])
    )
    return [*found, *weights(average), average(X).sum().item()]


@case
def averaged_model_of_torch():
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    found = fit(model, after=average.update_parameters)
    plain = torch.optim.swa_utils.AveragedModel(model)
    found += fit(model, after=plain.update_parameters)
    with torch.no_grad():
        return [*found, average.eval()(X).sum().item(), plain.eval()(X).sum().item()]


@case
def best_of_all():
    model, best = mlp(), None
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    found = []
    for _ in range(3):
        found += fit(model, optimizer=optimizer)
        with torch.no_grad():
            score = cross(model.eval(), X, Y).item()
        model.train()
        if best is None or score < best[0]:
            best = score, copy.deepcopy(model), copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    model.load_state_dict(best[2])
    optimizer.load_state_dict(best[3])
    found += fit(model, optimizer=optimizer)
    copied = best[1]
    return [*found, cross(copied.eval(), X, Y).item(), *fit(copied.train())]


@case
def copy_trained_on():
    model = mlp()
    found = fit(model)
    student = copy.deepcopy(model)
    found += fit(student, steps=3)
    return [*found, *fit(model, steps=2), *weights(student)]


@case
def saved_in_other_ways():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    found = fit(model, optimizer=optimizer)
    file = io.BytesIO()
    weights_of = {name: weight.data for name, weight in model.named_parameters()}
    listed = [weight.detach() for weight in model.parameters()]
    torch.save({"weights": weights_of, "list": listed, "moments": list(optimizer.state.values())}, file)
    file.seek(0)
    kept = torch.load(file, weights_only=False)
    found += [type(kept["weights"]["0.weight"]) is torch.Tensor, kept["weights"]["0.weight"].sum().item()]
    found += [kept["list"][0][-1, -1].item(), kept["moments"][0]["exp_avg_sq"].sum().item()]
    return [float(each) for each in found]


@case
def whole_model_saved():
    model = mlp()
    found = fit(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    kept = torch.load(file, weights_only=False)
    with torch.no_grad():
        return [*found, kept.eval()(X).sum().item(), *weights(kept)]


@case
def quantities_logged():
    model, seen = mlp(), []

    def before(model):
        for weight in model.parameters():
            ratio = weight.grad.norm() / weight.norm()
            seen.extend([ratio.item(), weight.grad.abs().max().item(), math.sqrt(float(weight.grad.square().mean()))])
            seen.append(float(torch.histc(weight.detach().float().cpu(), 5)[2]))
            seen.append(len(weight.tolist()))

    return [*fit(model, before=no_grad(before)), *seen[:40]]


@case
def grown_by_hand():
    model = mlp()
    found = fit(model)
    with torch.no_grad():
        new = nn.Linear(15, 4)
        new.weight[:3] = model[2].weight
        new.bias[:3] = model[2].bias
        other = nn.Sequential(nn.Linear(12, 15), nn.Tanh(), new)
        other[0].load_state_dict(model[0].state_dict())
    return [*found, *fit(other)]


@case
def weights_exchanged():
    one, two = mlp(), mlp()
    found = [*fit(one), *fit(two, steps=2)]
    two.load_state_dict(one.state_dict())
    found += fit(two, steps=2)
    with torch.no_grad():
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            a.copy_((a + b) / 2)
    return [*found, *fit(one, steps=2)]


class Lamb(torch.optim.Optimizer):
    """With one rate for each weight, by its norm."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(weight), torch.zeros(weight.shape)
                state["m"].mul_(0.9).add_(weight.grad, alpha=0.1)
                state["v"].mul_(0.99).addcmul_(weight.grad, weight.grad, value=0.01)
                update = state["m"] / (state["v"].sqrt() + 1e-6)
                trust = weight.norm() / update.norm().clamp(min=1e-6)
                weight.add_(update * trust, alpha=-group["lr"])


@case
def optimizer_of_the_programs_own():
    model = mlp()
    return fit(model, optimizer=Lamb(model.parameters()))


class Orthogonal(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                update = weight.grad
                if update.dim() == 2:
                    update = update / (update.norm() + 1e-7)
                    for _ in range(3):
                        square = update @ update.T
                        update = 1.5 * update - 0.5 * square @ update
                weight.data.add_(update, alpha=-group["lr"])


@case
def orthogonal_updates():
    model = mlp()
    return fit(model, optimizer=Orthogonal(model.parameters()))


@case
def adafactor_of_torch():
    model = mlp()
    return fit(model, optimizer=torch.optim.Adafactor(model.parameters(), lr=0.05))


@case
def other_optimizers_of_torch():
    found = []
    for kind in ("Adagrad", "Rprop", "RMSprop", "NAdam", "Adamax", "ASGD", "Adadelta", "RAdam"):
        model = mlp()
        found += fit(model, optimizer=getattr(torch.optim, kind)(model.parameters(), lr=0.02))
    return found


@case
def sharpness_aware():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(4):
        rows, target = X[step * 8 : step * 8 + 8], Y[step * 8 : step * 8 + 8]
        loss = cross(model, rows, target)
        loss.backward()
        norm = torch.stack([weight.grad.norm() for weight in model.parameters()]).norm()
        moves = {}
        with torch.no_grad():
            for weight in model.parameters():
                moves[weight] = weight.grad * (0.05 / norm)
                weight.add_(moves[weight])
        optimizer.zero_grad()
        cross(model, rows, target).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.sub_(moves[weight])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [*losses, *weights(model)]


@case
def gradients_kept_and_projected():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(4):
        kept = []
        for half in range(2):
            place = step * 16 + half * 8
            optimizer.zero_grad()
            loss = cross(model, X[place : place + 8], Y[place : place + 8])
            loss.backward()
            kept.append([weight.grad.clone() for weight in model.parameters()])
            losses.append(loss.item())
        dot = sum((one * two).sum() for one, two in zip(*kept, strict=True))
        for weight, one, two in zip(model.parameters(), *kept, strict=True):
            weight.grad = one + two if dot > 0 else one - two * 0.1
        optimizer.step()
    return [*losses, *weights(model)]


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(12, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(2))

    def encode(self, rows):
        hidden = self.first(rows)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden

    def forward(self, rows, head=0):
        return self.heads[head](self.encode(rows))


@case
def heads_in_turn():
    calls = []

    def loss(model, rows, target):
        calls.append(len(calls) % 2)
        return functional.cross_entropy(model(rows, calls[-1]), target)

    return fit(Heads(), loss_of=loss)


@case
def unused_head_that_decays():
    def loss(model, rows, target):
        return cross(model, rows, target) + 0.1 * sum(weight.square().sum() for weight in model.parameters())

    return fit(Heads(), loss_of=loss)


@case
def parts_called_by_the_program():
    model = Heads()
    found = fit(model)
    found += fit(model, loss_of=lambda m, rows, target: functional.cross_entropy(m.heads[1](m.encode(rows)), target))
    with torch.no_grad():
        found += [model.blocks[1](torch.ones(4, 8)).sum().item(), model.encode(X).sum().item()]
    return [*found, *fit(model)]


@case
def recurrent_layers_copied():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.cells = nn.LSTM(4, 8, 2, batch_first=True, bidirectional=True)
            self.last = nn.Linear(16, 3)

        def forward(self, rows):
            return self.last(self.cells(rows.view(-1, 3, 4))[0][:, -1])

    model = Model()
    found = fit(model)
    kept = copy.deepcopy(model)
    found += fit(model)
    return [*found, kept.eval()(X).sum().item(), *fit(kept.train())]


@case
def real_rows_penalised():
    model = mlp()

    def loss(model, rows, target):
        rows = rows.clone().requires_grad_()
        out = model(rows)
        slopes = torch.autograd.grad(out.sum(), rows, create_graph=True)[0]
        return functional.cross_entropy(out, target) + slopes.square().sum(1).mean()

    return fit(model, loss_of=loss)


@case
def differential_equation():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(model, rows, target):
        rows = rows.clone().requires_grad_()
        first = torch.autograd.grad(model(rows).sum(), rows, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), rows, create_graph=True)[0]
        return (first[:, 1] - 0.1 * second[:, 0] - 0.1).square().mean() + model(rows[:3]).square().mean()

    return fit(model, loss_of=loss)


@case
def gradients_by_name():
    model, seen = mlp(), []

    def loss(model, rows, target):
        found = cross(model, rows, target)
        gradients = torch.autograd.grad(found, list(model.parameters()), retain_graph=True)
        seen.append(sum(gradient.sum().item() for gradient in gradients))
        return found

    return [*fit(model, loss_of=loss), *seen]


@case
def traced_before_further_steps():
    model = mlp()
    found = fit(model)
    traced = torch.jit.trace(model, X[:8])
    return [*found, *fit(model), traced(X).sum().item()]


@case
def other_format_later():
    model = mlp()
    found = fit(model)
    with torch.no_grad():
        return [*found, model.double()(X.double()).sum().item()]


@case
def many_models_one_after_the_other():
    """As in cross-validation. Each rank collects its garbage at a time of its own."""
    first, found = gc.get_threshold(), []
    keeps = json.loads(os.environ.get("PACELINE_RANK", '{"rank": 0}'))["rank"] == 1
    gc.set_threshold(0 if keeps else first[0])
    for _ in range(70):
        model = mlp()
        model.itself = [model]
        found += fit(model, steps=2)[-1:]
        if not keeps:
            del model
            gc.collect()
    gc.set_threshold(*first)
    return found


@case
def models_that_are_gone_keep_no_memory():
    """As in a search for settings: what is left of each model, its weights and its optimizer; nothing."""
    left = []
    for _ in range(3):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        fit(model, optimizer=optimizer)
        left += [weakref.ref(each) for each in (model, optimizer, *model.parameters())]
        del model, optimizer
    gc.collect()
    return [float(each() is not None) for each in left]


@case
def new_heads_on_one_body():
    """Heads that are replaced take their weights with them, on each rank when it collects its garbage."""
    keeps = json.loads(os.environ.get("PACELINE_RANK", '{"rank": 0}'))["rank"] == 1
    body, found = nn.Sequential(nn.Linear(12, 16), nn.Tanh()), []
    gc.disable()
    for _ in range(4):
        model = nn.Sequential(body, nn.Linear(16, 5))
        model.itself = [model]
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        found += fit(model, optimizer=optimizer)
        del model, optimizer
        if not keeps:
            gc.collect()
    gc.enable()
    return found


@case
def moved_to_where_it_is():
    """As at the end of a program that saves a model; torch cannot swap the weights of a split model."""
    model = mlp()
    found = fit(model)
    model.cpu()
    found += fit(model.to("cpu").float())
    with torch.no_grad():
        return [*found, model.cpu()(X[:8]).sum().item()]


@case
def pruned_after_training():
    from torch.nn.utils import prune

    model = mlp()
    found = fit(model)
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    return found + fit(model)


@case
def normed_after_training():
    model = mlp()
    found = fit(model)
    nn.utils.parametrizations.weight_norm(model[0])
    return found + fit(model)


@case
def listed_before_the_first_step():
    """As programs do that average weights, penalise them, or change gradients."""
    model = mlp()
    listed, named = list(model.parameters()), dict(model.named_parameters())
    average = [weight.detach().clone() for weight in listed]
    found = []

    def loss_of(model, rows, target):
        return cross(model, rows, target) + 0.01 * sum(weight.pow(2).sum() for weight in named.values())

    def before(model):
        found.append(sum(weight.grad.norm().item() for weight in listed))
        for weight in listed:
            weight.grad.mul_(0.5)

    def after(model):
        with torch.no_grad():
            for kept, weight in zip(average, listed, strict=True):
                kept.lerp_(weight, 0.2)
                weight.clamp_(-0.3, 0.3)
            listed[1].data.add_(0.01)

    losses = fit(model, before=before, after=after, loss_of=loss_of)
    copies = [copy.deepcopy(weight).sum().item() for weight in listed]
    second = fit(model, optimizer=torch.optim.SGD(listed, 0.05))
    return [*losses, *found, *copies, *(kept.sum().item() for kept in average), *second, listed[0].tolist()[0][0]]


@case
def gathered_in_numbers_of_one_element():
    """In-place operations on plain tensors, whose other operand is sharded."""
    model = nn.Sequential(nn.Linear(12, 1))
    target = copy.deepcopy(model)
    found = []

    def loss_of(model, rows, targets):
        penalty, square = torch.tensor(0.0), torch.zeros(1)
        for weight in model.parameters():
            penalty += weight.abs().sum()
            square.add_(weight.pow(2).sum())
        found.extend([penalty.item(), square.item()])
        return (model(rows)[:, 0] - targets).square().mean() + 0.01 * penalty + 0.01 * square[0]

    def after(model):
        with torch.no_grad():
            for kept, weight in zip(target.parameters(), model.parameters(), strict=True):
                kept.data.mul_(0.9).add_(0.1 * weight.data)
            target[0].bias.lerp_(model[0].bias, 0.1)
            found.append(target[0].bias.item())

    return [*fit(model, loss_of=loss_of, after=after), *found]


@case
def weight_of_two_models():
    torch.manual_seed(0)
    coder, decoder = nn.Linear(12, 5, bias=False), nn.Linear(12, 5)
    decoder.weight = coder.weight
    optimizer = torch.optim.SGD([coder.weight, decoder.bias], 0.05)
    return fit(
        decoder,
        optimizer=optimizer,
        loss_of=lambda model, rows, target: cross(model, rows + coder(rows).mean(1, keepdim=True), target),
    )


@case
def returned_weight():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.body, self.last = nn.Linear(12, 8), nn.Parameter(torch.randn(5, 8))

        def forward(self, rows):
            return self.body(rows), self.last

    def loss_of(model, rows, target):
        hidden, last = model(rows)
        return nn.functional.cross_entropy(hidden @ last.t(), target)

    return fit(Model(), loss_of=loss_of)


@case
def gradient_of_a_plain_parameter():
    model, scale = mlp(), nn.Parameter(torch.ones(1))

    def loss_of(model, rows, target):
        rows = model(rows)
        (gradient,) = torch.autograd.grad((rows * scale).square().mean(), scale, create_graph=True)
        return nn.functional.cross_entropy(rows * (scale - 0.1 * gradient), target)

    return fit(model, loss_of=loss_of)


@case
def lazy_layers_and_statistics():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.BatchNorm1d(8, momentum=None), nn.LazyLinear(5)
    )
    model(X[:8])
    found = fit(model)
    model.eval()
    with torch.no_grad():
        statistics = [model[place].running_mean.sum().item() for place in (1, 3)]
        return [*found, *statistics, float(model[1].num_batches_tracked), model(X[:16]).sum().item()]


@case
def weights_known_by_identity():
    """Before training, a program may store ids of weights, use weights as keys, and set attributes on them."""
    model = mlp()
    model[0].weight.rate, model[2].bias.rate = 0.5, 2.0
    numbers = {id(weight) for weight in model[0].parameters()}
    matrices = {weight for weight in model.parameters() if weight.dim() == 2}
    names = {weight: name for name, weight in model.named_parameters()}
    listed, counts = list(model.parameters()), []
    references = [weakref.ref(weight) for weight in model.parameters()]

    def before(model):
        grouped = [[w.grad.norm() for w in model.parameters() if (id(w) in numbers) is own] for own in (True, False)]
        nn.utils.clip_grad_norm_([w for w in model.parameters() if id(w) in numbers], 0.05)
        for weight in model.parameters():
            weight.grad.mul_(getattr(weight, "rate", 1.0))
            if weight in matrices:
                weight.grad.add_(0.01 * weight.detach())
            if names[weight].endswith("bias"):
                weight.grad.mul_(0.5)
        counts.extend(len(norms) for norms in grouped)
        counts.append(sum(weight in matrices for weight in listed) + sum(weight in names for weight in listed))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = fit(model, before=before, optimizer=optimizer)
    moments = [optimizer.state[weight]["momentum_buffer"].norm().item() for weight in listed]
    kept = {weight: number for number, weight in enumerate(model.parameters())}
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    copied = [getattr(w, "rate", 0.0) for each in (copy.deepcopy(model), saved) for w in each.parameters()]
    alive = [reference() is not None for reference in references]
    places = [kept[weight] for weight in listed] + [names[weight] == name for name, weight in model.named_parameters()]
    return [*found, *counts, *moments, *places, len({*listed, *model.parameters()}), *copied, *alive]


@case
def classes_known_by_name():
    """As in the trainer of transformers, the name of the class decides how the loss is computed."""

    class Named(nn.Sequential):
        pass

    torch.manual_seed(0)
    model = Named(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))

    def loss_of(model, rows, target):
        known = model._get_name() == type(model).__name__ == "Named" and "Named(" in repr(model)
        return functional.cross_entropy(model(rows), target, label_smoothing=0.2 if known else 0.0)

    found = fit(model, loss_of=loss_of)
    return [*found, type(model).__module__ == Named.__module__, type(model).__qualname__ == Named.__qualname__]


@case
def weights_toggled_for_each_loss():
    """As Lightning does it: what has its own optimizer is frozen while the other is trained."""
    torch.manual_seed(0)
    body, heads = nn.Linear(12, 8), nn.ModuleList(nn.Linear(8, size) for size in (3, 1))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.heads = body, heads

        def forward(self, rows):
            hidden = self.body(rows).tanh()
            return [head(hidden) for head in self.heads]

    model, found = Model(), []
    optimizers = [torch.optim.Adam([*body.parameters(), *head.parameters()], 0.02) for head in heads]
    for step in range(6):
        states = {}
        for optimizer in optimizers:
            states.update((w, w.requires_grad) for group in optimizer.param_groups for w in group["params"])
        own = {weight for group in optimizers[step % 2].param_groups for weight in group["params"]}
        for weight, is_trained in states.items():
            weight.requires_grad = weight in own and is_trained
        classes, number = model(X[step * 8 : step * 8 + 8])
        target = Y[step * 8 : step * 8 + 8]
        loss = functional.cross_entropy(classes, target) if step % 2 == 0 else (number[:, 0] - target).square().mean()
        optimizers[step % 2].zero_grad()
        loss.backward()
        optimizers[step % 2].step()
        for optimizer in optimizers:
            for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
                if weight in states:
                    weight.requires_grad = states[weight]
        found.append(loss.item())
    return [*found, *weights(model)]


@case
def tensors_that_share_memory_with_weights():
    """Tensors that are made before the first step or kept afterwards follow the weights, and write into them."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    early, data = model.state_dict(), model[0].weight.data
    fit(model, optimizer=optimizer)
    kept, copied = model.state_dict(), copy.deepcopy(model.state_dict())
    kept_by_optimizer = optimizer.state_dict()
    fit(model, optimizer=optimizer)
    found = [sums(early), data.sum().item(), sums(kept), sums(copied), averages(kept_by_optimizer)]
    kept["0.weight"].mul_(0.5)
    kept["2.bias"][1] = 3.0
    data.add_(model[0].weight, alpha=0.25)
    found += weights(model)
    model.load_state_dict({name: (kept[name] + copied[name]) / 2 for name in kept})
    optimizer.load_state_dict(kept_by_optimizer)
    found += fit(model, optimizer=optimizer)
    saved = io.BytesIO()
    torch.save([kept, optimizer.state_dict()], saved)
    fit(model, optimizer=optimizer)
    read, read_optimizer = torch.load(io.BytesIO(saved.getvalue()))
    assert type(read["0.weight"]) is torch.Tensor
    other = copy.deepcopy(model)
    other.load_state_dict(kept)
    return [*found, sums(read), averages(read_optimizer), *weights(other), sums(early)]


def sums(tensors):
    return sum((place + 1) * tensor.double().sum().item() for place, tensor in enumerate(tensors.values()))


def averages(state):
    return sum(each["exp_avg"].double().sum().item() for each in state["state"].values())


@case
def kept_state_follows_each_way_of_writing():
    """A kept state is read after each way to write into a weight, without reading the weight first."""
    model, found = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    fit(model, optimizer=optimizer)
    weight, kept = model[0].weight, model.state_dict()

    def assigned():
        weight.data = torch.full((15, 12), 0.5)

    def put():
        weight[0] = 3

    ways = [
        lambda: weight.copy_(torch.ones(15, 12)),
        lambda: weight.mul_(2),
        lambda: weight.data.add_(1),
        assigned,
        put,
        lambda: weight[0].mul_(3),
        lambda: nn.init.constant_(weight, 0.25),
        lambda: torch.add(weight, 1, out=weight),
        lambda: torch._foreach_mul_([weight], 2),
        optimizer.step,
        lambda: model.load_state_dict({name: value * 0 + 1 for name, value in kept.items()}),
        lambda: nn.utils.vector_to_parameters(torch.arange(243.0), model.parameters()),
    ]
    for way in ways:
        with torch.no_grad():
            way()
        found.append(kept["0.weight"].double().sum().item())
    return found


@case
def tensors_assigned_to_weights_share_their_memory():
    """A tensor that was assigned to `data` follows the weight, and a change of it changes the weight."""
    model, found = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    fit(model, optimizer=optimizer)
    for make in (lambda weight: weight.data.clone(), lambda weight: torch.full(weight.shape, 0.1)):
        kept = [make(weight) for weight in model.parameters()]
        for weight, value in zip(model.parameters(), kept):
            weight.data = value
        fit(model, optimizer=optimizer)
        found += [sum(value.double().abs().sum().item() for value in kept), *weights(model)]
        kept[0].mul_(0.5)
        found += [*weights(model), model(X).sum().item()]
    return found


@case
def average_put_in_place_and_taken_out_again():
    """Values that were kept before an assignment to `data` no longer change with the weight."""
    model, found = mlp(), []
    average = {name: weight.data.clone() for name, weight in model.named_parameters()}
    for _ in range(3):
        found += fit(model)
        for name, weight in model.named_parameters():
            average[name] = 0.1 * weight.data + 0.9 * average[name]
        kept = {}
        for name, weight in model.named_parameters():
            kept[name] = weight.data
            weight.data = average[name]
        found.append(model(X).sum().item())
        for name, weight in model.named_parameters():
            weight.data = kept[name]
        found += weights(model)
    return found


@case
def weights_swapped_with_others():
    model, found = mlp(), []
    others = [torch.full_like(weight, 0.1) for weight in model.parameters()]
    for _ in range(3):
        found += fit(model)
        for place, weight in enumerate(model.parameters()):
            weight.data, others[place] = others[place], weight.data
        found += [sum(each.double().abs().sum().item() for each in others), model(X).sum().item(), *weights(model)]
    return found


@case
def a_copy_of_a_model_gets_values_of_the_weights():
    model = mlp()
    other = copy.deepcopy(model)
    found = fit(model)
    for one, weight in zip(other.parameters(), model.parameters()):
        one.data = 0.5 * one.data + 0.5 * weight.data
    with torch.no_grad():
        return [*found, other.eval()(X).sum().item(), *weights(other)]


@case
def tied_weights_share_memory_in_a_kept_state():
    """Libraries that write checkpoints find tied weights by their shared memory, and write them once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12))
    model[2].weight = model[0].weight
    found = fit(model)
    kept = model.state_dict()
    again = model.state_dict()
    tensors = [kept["0.weight"], kept["2.weight"], again["0.weight"]]
    same = len({each.untyped_storage().data_ptr() for each in tensors})
    kept["2.weight"].mul_(0.5)
    return [*found, same, sums(again), *weights(model)]


@case
def weights_saved_by_a_thread():
    """The saving thread does not wait for the ranks, so it saves the weights of an unknown step."""
    model, saved = mlp(), io.BytesIO()
    fit(model)
    kept = model.state_dict()
    found = fit(model)
    thread = threading.Thread(target=lambda: torch.save(kept, saved))
    thread.start()
    found += fit(model)
    thread.join(60)
    assert not thread.is_alive()
    assert sorted(torch.load(io.BytesIO(saved.getvalue()))) == sorted(kept)
    return [*found, sums(kept)]


@case
def says_it_once_or_the_same_each_time():
    """A model may print what does not depend on its rows."""
    model, said = mlp(), []

    def tell(module, inputs):
        logging.getLogger("model").info("called")
        if not said:
            said.append("once")
            logging.getLogger("model").warning("called for the first time")

    model.register_forward_pre_hook(tell)
    return fit(model)


def main():
    names = sys.argv[1:] or list(CASES)
    for name in names:
        try:
            found = CASES[name]()
            print(name, *(f"{number:.6f}" for number in found), flush=True)
        except SystemExit as ending:
            print(name, "refused", ending.code, flush=True)
        except Exception as error:
            print(name, "failed", type(error).__name__, str(error)[:300].replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
