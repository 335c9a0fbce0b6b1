from dataclasses import dataclass, field


@dataclass
class DataConfig:
    batch_size: int = 8
    num_workers: int = 0
    pin_memory: bool = False


@dataclass
class TrainConfig:
    lr: float = 0.1
    epochs: int = 3
    data: DataConfig = field(default_factory=DataConfig)
