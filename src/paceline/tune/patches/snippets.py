"""Code that patches insert below the imports of a file, such as a loader class with persistent workers."""

from __future__ import annotations

from paceline.tune.patches.insertions import Snippet

KEPT_WORKERS = Snippet(
    code='''
class KeptWorkers(torch.utils.data.DataLoader):
    """Keeps its workers, and draws in each epoch the number that new ones would: shuffling stays what it was."""

    def __iter__(self):
        if self._iterator is not None:
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return super().__iter__()
'''.lstrip()
)

DRAWS_ONCE = Snippet(
    code='''
class DrawsOnce(torch.utils.data.DataLoader):
    """Draw the seed of the workers in the first epoch only, as kept workers would, so that the order is the same."""

    epochs = 0

    def __iter__(self):
        generator = self.generator or torch.default_generator
        state = generator.get_state()
        batches = super().__iter__()
        if self.epochs:
            generator.set_state(state)
        self.epochs += 1
        return batches
'''.lstrip()
)

CACHED_SAMPLES = Snippet(
    needs=("copy", "os", "torch"),
    code='''
class CachedSamples(torch.utils.data.Dataset):
    """Keep each sample after it was made, in at most 40% of the memory that was free at the start."""

    def __init__(self, dataset):
        self.dataset = dataset  # which takes the samples, so that a loader made anew in each epoch finds them
        self.samples = getattr(dataset, "__dict__", {}).setdefault("_cached_samples", {})
        self.left = 0.4 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def __len__(self):
        return len(self.dataset)

    def __getattr__(self, name):
        if name == "dataset" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, index):
        if index in self.samples:
            return copy.deepcopy(self.samples[index])
        sample = self.dataset[index]
        if self.left > 0:
            self.samples[index] = copy.deepcopy(sample)
            self.left -= self.size_of(sample)
        return sample

    def size_of(self, sample):
        if isinstance(sample, (dict, list, tuple)):
            return sum(map(self.size_of, sample.values() if isinstance(sample, dict) else sample))
        return getattr(sample, "nbytes", 0) + 64
'''.lstrip(),
)

IN_BF16 = Snippet(
    needs=("torch", "types"),
    code='''
def in_bf16(model):
    """Run the forward pass of a model in bfloat16 autocast, and return its bfloat16 outputs as float32."""

    def single(value):
        if isinstance(value, torch.Tensor):
            return value.float() if value.dtype == torch.bfloat16 else value
        if isinstance(value, dict):
            for key in value:
                value[key] = single(value[key])
            return value
        if isinstance(value, (list, tuple)):
            parts = [single(one) for one in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value

    def forward(self, *args, **kwargs):
        with torch.autocast(next(self.parameters()).device.type, dtype=torch.bfloat16):
            result = type(self).forward(self, *args, **kwargs)
        return single(result)

    model.forward = types.MethodType(forward, model)
'''.lstrip(),
)

CHANNELS_LAST = Snippet(
    code='''
def channels_last(model):
    """Store the weights and the 4-dimensional inputs of a model in the channels-last memory format."""
    model.register_forward_pre_hook(pictures_last, with_kwargs=True)
    model.to(memory_format=torch.channels_last)


def pictures_last(module, args, kwargs):
    def last(value):
        picture = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.to(memory_format=torch.channels_last) if picture else value

    return tuple(map(last, args)), {key: last(value) for key, value in kwargs.items()}
'''.lstrip()
)

COMPILE_WHOLE = Snippet(
    code='''
def compile_whole(model, mode=None):
    """Compile a model in place, also a model class of torch, whose own forward torch.compile skips by default."""
    with torch._dynamo.config.patch(wrap_top_frame=True):
        model.compile(mode=mode)
'''.lstrip()
)
