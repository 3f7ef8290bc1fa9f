"""What each data set consists of, where it is published, and how to know that a copy is intact."""

from dataclasses import dataclass

EMBEDDED = ("digits", "breast-cancer")  # they come with scikit-learn: no file to find


@dataclass(frozen=True)
class File:
    """One file of a data set."""

    name: str  # its name as published
    urls: tuple[str, ...] = ()  # where to download it, in order of preference
    digest: str | None = None  # `"algorithm:hex"` as published; not applied to a copy kept under another name
    rows: int | None = None  # number of samples of a LIBSVM text, whose site publishes no checksums
    nonzeros: int | None = None  # number of `index:value` pairs of a LIBSVM text
    also: tuple[str, ...] = ()  # other names under which a folder may hold it
    required: bool = True  # whether the set is complete only with this file


@dataclass(frozen=True)
class Source:
    """A data set made of files."""

    folders: tuple[str, ...]  # sub-folders of a root that may hold the files, in order; downloads go to the first
    choices: tuple[tuple[File, ...], ...]  # alternative forms, each one the whole set; the last is the one to download


def _mnist(name: str, md5: str) -> File:
    # The original site often refuses scripts; these two mirrors serve the same bytes.
    mirrors = (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    )
    urls = tuple(f"{mirror}/{name}.gz" for mirror in mirrors)
    return File(f"{name}.gz", urls, digest=f"md5:{md5}", also=(name,))


def _libsvm(name: str, rows: int, nonzeros: int | None, required: bool = True) -> File:
    url = f"https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/{name}"
    also = (f"{name}.gz", f"{name}.bz2")
    return File(name, (url,), rows=rows, nonzeros=nonzeros, also=also, required=required)


_CIFAR10_TAR = File(
    "cifar-10-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    digest="md5:c32a1d4ab5d03f1284b67883e8d87530",
)
_CIFAR10_BATCHES = (
    File("data_batch_1.bin", digest="sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
    File("data_batch_2.bin", digest="sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
    File("data_batch_3.bin", digest="sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
    File("data_batch_4.bin", digest="sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e"),
    File("data_batch_5.bin", digest="sha1:26e2849e66a845b7f1e4614ae70f4889ae604628"),
    File("test_batch.bin", digest="sha1:67eb016db431130d61cd03c7ad570b013799c88c"),
)

SOURCES: dict[str, Source] = {
    "mnist": Source(
        folders=("mnist", "MNIST/raw", "."),  # MNIST/raw is where torchvision keeps the same files
        choices=(
            (
                _mnist("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                _mnist("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432"),
                _mnist("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3"),
                _mnist("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c"),
            ),
        ),
    ),
    "cifar10": Source(folders=("cifar10", "cifar-10-batches-bin", "."), choices=(_CIFAR10_BATCHES, (_CIFAR10_TAR,))),
    "a9a": Source(
        folders=("libsvm", "."),
        choices=((_libsvm("a9a", 32_561, 451_592), _libsvm("a9a.t", 16_281, 225_731)),),
    ),
    "w8a": Source(
        folders=("libsvm", "."),
        choices=((_libsvm("w8a", 49_749, 579_586), _libsvm("w8a.t", 14_951, None, required=False)),),
    ),
}
