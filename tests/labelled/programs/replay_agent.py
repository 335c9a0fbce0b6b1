"""A small value network for a walk on a line, with a memory of what happened that fades with age."""

import argparse
import random

import torch
from torch import nn


class Memory:
    def __init__(self, capacity):
        self.capacity, self.events = capacity, []

    def add(self, events):
        for state, action, reward in events:
            self.events.append({"state": state, "action": action, "reward": reward, "weight": 1.0})
        self.events = self.events[-self.capacity :]

    def fade(self, decay=0.995):
        """Age every event; return how much of the memory is still vivid."""
        vivid = 0
        for event in self.events:
            event["weight"] = 0.05 + (event["weight"] - 0.05) * decay
            vivid += event["weight"] > 0.5
        return vivid / len(self.events)

    def draw(self, count):
        return random.choices(self.events, k=count)


def play(count):
    for _ in range(count):
        state, action = random.uniform(-1, 1), random.randrange(2)
        yield state, action, -abs(state + (0.2 if action else -0.2))


def learn(network, optimizer, events):
    states = torch.tensor([[e["state"]] for e in events])
    actions = torch.tensor([e["action"] for e in events])
    rewards = torch.tensor([e["reward"] for e in events])
    values = network(states).gather(1, actions[:, None]).squeeze(1)
    loss = nn.functional.mse_loss(values, rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--capacity", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--moves", type=int, default=150)
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = nn.Sequential(nn.Linear(1, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02)
    memory = Memory(args.capacity)
    for step in range(args.steps):
        memory.add(play(args.moves))
        loss = learn(network, optimizer, memory.draw(128))
        vivid = memory.fade()
        if step % 25 == 0:
            print(f"step {step} loss {loss:.4f} memory {len(memory.events)} vivid {vivid:.2f}")


if __name__ == "__main__":
    main()
