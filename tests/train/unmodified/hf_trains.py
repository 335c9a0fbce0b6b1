"""Hugging Face's Trainer for one process: clipped, accumulated, an uneven last batch, evaluated, saved; as JSON."""

import json
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

LENGTH, WORDS = 12, 40


class Texts(torch.utils.data.Dataset):
    """Texts [LENGTH] of which some tokens have no target: a mean over tokens weighs rows unlike."""

    def __init__(self, count):
        drawn = torch.Generator().manual_seed(count)
        self.tokens = torch.randint(WORDS, (count, LENGTH), generator=drawn)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        labels = self.tokens[index].clone()
        labels[LENGTH - index % 5 :] = -100
        return {"input_ids": self.tokens[index], "labels": labels}


set_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
    )
)
arguments = TrainingArguments(
    sys.argv[1],
    num_train_epochs=2,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    max_grad_norm=0.5,
    eval_strategy="epoch",
    save_strategy="epoch",
    logging_steps=1,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model, arguments, train_dataset=Texts(44), eval_dataset=Texts(20))
trainer.train()
predicted = trainer.predict(Texts(20)).predictions  # [texts, LENGTH, WORDS]
if trainer.is_world_process_zero():
    history = trainer.state.log_history
    print(
        json.dumps(
            {
                "loss": [entry["loss"] for entry in history if "loss" in entry],
                "norm": [entry["grad_norm"] for entry in history if "grad_norm" in entry],
                "evaluated": [entry["eval_loss"] for entry in history if "eval_loss" in entry],
                "predicted": [*predicted.shape, *predicted.astype("float64").sum((1, 2)).tolist()],
                "weights": [weight.double().abs().sum().item() for weight in model.parameters()],
            }
        )
    )
