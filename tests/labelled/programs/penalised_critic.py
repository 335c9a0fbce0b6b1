"""A Wasserstein GAN with gradient penalty: five critic steps, with gradients of gradients, to one of the generator."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 784))
    critic = nn.Sequential(
        nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)
    )
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
    drawings = torch.rand(2048, 784).round()
    for step in range(30):
        for _ in range(5):
            real = drawings[torch.randint(0, 2048, (192,))]
            fake = generator(torch.randn(192, 32)).detach()
            between = torch.lerp(real, fake, torch.rand(192, 1)).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            loss = critic(fake).mean() - critic(real).mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
            of_critic.zero_grad()
            loss.backward()
            of_critic.step()
        value = -critic(generator(torch.randn(192, 32))).mean()
        of_generator.zero_grad()
        value.backward()
        of_generator.step()
        if step % 15 == 0:
            print(step, f"{loss.item():.2f} {value.item():.2f}")


if __name__ == "__main__":
    main()
