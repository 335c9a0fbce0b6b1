"""Hugging Face's Trainer on a tiny BERT made from its configuration; evaluates and saves once."""

import sys
import tempfile

import torch
from data import DEVICE, Sums
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(0)
torch.set_num_threads(1)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, num_labels=2
    )
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=60,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        dataloader_num_workers=int(sys.argv[1]) if len(sys.argv) > 1 else 0,
        eval_strategy="steps",
        eval_steps=30,
        save_steps=30,
        logging_steps=20,
        report_to=[],
        disable_tqdm=True,
        use_cpu=DEVICE == "cpu",
    )
    trainer = Trainer(model, arguments, train_dataset=Sums(), eval_dataset=Sums(64))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print("losses", losses)
