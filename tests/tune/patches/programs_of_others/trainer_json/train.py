import os
import sys
from dataclasses import dataclass, field

import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    hidden: int = field(default=8, metadata={"help": "width"})


class Net(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 3))

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, training_args = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    else:
        model_args, training_args = parser.parse_args_into_dataclasses()
    torch.manual_seed(training_args.seed)
    rows = [{"x": torch.randn(8), "labels": torch.randint(0, 3, ()).item()} for _ in range(96)]
    trainer = Trainer(model=Net(model_args.hidden), args=training_args, train_dataset=rows)
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(entry["step"], float(entry["loss"]).hex())


if __name__ == "__main__":
    main()
