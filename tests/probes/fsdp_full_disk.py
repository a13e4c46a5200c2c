"""Lesson 09 on a disk that is full when the first checkpoint is written."""

from torch.distributed.checkpoint import FileSystemWriter

from meshes import become

as_it_was = FileSystemWriter.write_data


def full_at_first(self, *arguments, **options):
    if str(self.path).endswith("epoch0001"):
        raise OSError(28, "No space left on device")
    return as_it_was(self, *arguments, **options)


FileSystemWriter.write_data = full_at_first
become("09_fsdp")
