import argparse


class BaseOptions:
    def initialize(self, parser):
        parser.add_argument("--batch_size", type=int, default=8, help="input batch size")
        parser.add_argument("--num_threads", default=0, type=int, help="# threads for loading data")
        parser.add_argument("--serial_batches", action="store_true", help="if true, takes images in order")
        return parser

    def parse(self):
        parser = self.initialize(argparse.ArgumentParser())
        opt, _ = parser.parse_known_args()
        for name, value in sorted(vars(opt).items()):
            print(f"{name}: {value}") if name == "batch_size" else None
        return opt
