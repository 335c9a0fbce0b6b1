import torch.utils.data


def create_dataset(opt):
    return CustomDatasetDataLoader(opt).load_data()


class CustomDatasetDataLoader:
    def __init__(self, opt):
        self.opt = opt
        self.dataset = torch.utils.data.TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,)))
        self.dataloader = torch.utils.data.DataLoader(
            self.dataset,
            batch_size=opt.batch_size,
            shuffle=not opt.serial_batches,
            num_workers=int(opt.num_threads),
        )

    def load_data(self):
        return self

    def __iter__(self):
        yield from self.dataloader
