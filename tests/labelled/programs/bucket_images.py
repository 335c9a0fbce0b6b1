"""Train on pictures fetched one by one from an object store (a small local one here)."""

import argparse
import multiprocessing as mp
import socket
import socketserver
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

SHAPE = (3, 32, 32)


class Answer(socketserver.StreamRequestHandler):
    latency = 0.01

    def handle(self):
        key = int(self.rfile.readline())
        time.sleep(self.latency)
        self.wfile.write(np.random.default_rng(key).integers(60 * (key % 2), 256, SHAPE, dtype=np.uint8).tobytes())


def serve(pipe, latency):
    Answer.latency = latency
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        pipe.send(server.server_address)
        server.serve_forever()


class Bucket(Dataset):
    def __init__(self, address, keys):
        self.address, self.keys = address, keys

    def __len__(self):
        return self.keys

    def __getitem__(self, key):
        with socket.create_connection(self.address) as connection:
            connection.sendall(b"%d\n" % key)
            body = b""
            while chunk := connection.recv(65536):
                body += chunk
        picture = torch.frombuffer(bytearray(body), dtype=torch.uint8).view(SHAPE).float() / 255
        return picture, key % 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keys", type=int, default=560)
    parser.add_argument("--latency", type=float, default=0.010)
    args = parser.parse_args()
    torch.set_num_threads(1)

    here, there = mp.Pipe()
    store = mp.Process(target=serve, args=(there, args.latency), daemon=True)
    store.start()
    address = here.recv()

    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (x, y) in enumerate(DataLoader(Bucket(address, args.keys), batch_size=8, num_workers=args.workers)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print("step", step, "loss", round(loss.item(), 3))
    store.terminate()


if __name__ == "__main__":
    main()
