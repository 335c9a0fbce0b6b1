"""Policy gradients in a maze: games are played in plain Python, then the policy learns from them once."""

import argparse
import random

import torch
from torch import nn


class Maze:
    def __init__(self, size, rng):
        self.size, self.rng = size, rng
        self.walls = {(rng.randrange(size), rng.randrange(size)) for _ in range(size * size // 5)}

    def reset(self):
        self.at = (0, 0)
        return self.view()

    def view(self):
        row, column = self.at
        near = [float((row + dr, column + dc) in self.walls) for dr in range(-3, 4) for dc in range(-3, 4)]
        return [row / self.size, column / self.size, *near]

    def distance(self):
        todo, seen = [(self.at, 0)], {self.at}
        while todo:
            place, far = todo.pop(0)
            if place == (self.size - 1, self.size - 1):
                return far
            for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                new = (place[0] + dr, place[1] + dc)
                if 0 <= min(new) and max(new) < self.size and new not in self.walls and new not in seen:
                    seen.add(new)
                    todo.append((new, far + 1))
        return 2 * self.size

    def step(self, action):
        dr, dc = ((0, 1), (1, 0), (0, -1), (-1, 0))[action]
        before = self.distance()
        new = (self.at[0] + dr, self.at[1] + dc)
        if 0 <= min(new) and max(new) < self.size and new not in self.walls:
            self.at = new
        return self.view(), float(before - self.distance())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=18)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = nn.Sequential(nn.Linear(51, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    maze = Maze(args.size, random.Random(1))
    for game in range(300):
        state, seen, actions, rewards = maze.reset(), [], [], []
        for _ in range(24):
            with torch.no_grad():
                action = int(torch.multinomial(policy(torch.tensor(state)).softmax(0), 1))
            seen.append(state)
            actions.append(action)
            state, reward = maze.step(action)
            rewards.append(reward)
        returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        said = policy(torch.tensor(seen)).log_softmax(1)[torch.arange(24), torch.tensor(actions)]
        loss = -(said * (returns - returns.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if game % 15 == 0:
            print(game, sum(rewards))


if __name__ == "__main__":
    main()
