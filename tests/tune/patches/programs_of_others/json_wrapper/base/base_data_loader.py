from torch.utils.data import DataLoader
from torch.utils.data.dataloader import default_collate
from torch.utils.data.sampler import SubsetRandomSampler


class BaseDataLoader(DataLoader):
    """Base class for all data loaders."""

    def __init__(self, dataset, batch_size, shuffle, validation_split, num_workers, collate_fn=default_collate):
        self.validation_split = validation_split
        self.shuffle = shuffle
        self.n_samples = len(dataset)
        sampler = SubsetRandomSampler(range(int(self.n_samples * (1 - validation_split))))
        self.init_kwargs = {
            "dataset": dataset,
            "batch_size": batch_size,
            "collate_fn": collate_fn,
            "num_workers": num_workers,
        }
        super().__init__(sampler=sampler, **self.init_kwargs)
