"""Stands in for `datasets`, which SGLang's test kits import for benchmarks that nobody runs here."""


def load_dataset(*_: object, **__: object) -> None:
    raise NotImplementedError("a stand-in: install the real datasets to load any")
