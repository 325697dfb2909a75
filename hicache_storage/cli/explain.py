"""`hicache explain`: what a key says, and why a reader of another namespace misses it."""

from __future__ import annotations

import argparse

from hicache_storage.cli import exit_codes
from hicache_storage.cli.options import add_command, add_json_argument, add_store_arguments, open_to_look
from hicache_storage.cli.output import human_time, print_json, printable
from hicache_storage.engine_integration.page_store import Descriptor, digest_of_descriptor, read_descriptor
from hicache_storage.errors import CorruptObject, LayoutError
from hicache_storage.layout import ObjectKey
from hicache_storage.store import ObjectStore

_DESCRIPTOR_PREFIX = "namespace_"
_FOUND, _MISSING, _DAMAGED = "found", "missing", "damaged"

_EXAMPLES = """hicache explain KEY --store file:///mnt/kv
hicache explain KEY --offline"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to *commands*."""
    parser = add_command(
        commands,
        "explain",
        summary="read a key back: model, dtype, page, layers, heads",
        description="Take a key apart and say what it stands for, with the namespace's description from the store, "
        "whether the object is there, and in which fields other namespaces of the store differ from its own: that is "
        "why a reader of another deployment misses it.",
        examples=_EXAMPLES,
    )
    parser.add_argument("key", metavar="KEY", help="an object's key")
    parser.add_argument("--offline", action="store_true", help="explain the key alone, without a store")
    add_store_arguments(parser)
    add_json_argument(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Explain the key; CORRUPT if the namespace's description is damaged, MISSING if the object is not there."""
    key = ObjectKey.parse(args.key)
    if args.offline:
        _print(args.json, _of_key(key))
        return exit_codes.DONE
    with open_to_look(args) as store:
        explained = _of_key(key) | _of_store(store, key)
    _print(args.json, explained)
    if explained["description"] == _DAMAGED:
        return exit_codes.CORRUPT
    return exit_codes.DONE if explained["in_store"] else exit_codes.MISSING


def _of_key(key: ObjectKey) -> dict[str, object]:
    return {
        "key": str(key),
        "page_hash": key.page_hash,
        "namespace": key.namespace_digest,
        "layers": [key.chunk.layers.start, key.chunk.layers.stop],
        "head_group": key.chunk.group,
    }


def _of_store(store: ObjectStore, key: ObjectKey) -> dict[str, object]:
    info = store.stat(str(key))
    descriptor, problem = _description(store, key.namespace_digest)
    explained: dict[str, object] = {
        "in_store": info is not None,
        "nbytes": info.nbytes if info is not None else None,
        "modified_s": info.modified_s if info is not None else None,
        "description": _DAMAGED if problem else _MISSING if descriptor is None else _FOUND,
        "description_problem": problem or None,
        "fields": descriptor.fields if descriptor is not None else None,
        "heads": _heads(key, descriptor),
    }
    if store.capabilities.listing:
        explained["other_namespaces"] = _others(store, key.namespace_digest, descriptor)
    return explained


def _description(store: ObjectStore, digest: str) -> tuple[Descriptor | None, str]:
    """Return what the store says of a namespace, and what is wrong with a description that cannot be trusted."""
    try:
        found = read_descriptor(store, digest)
    except (LayoutError, CorruptObject) as error:
        return None, str(error)
    if found is not None and found.digest != digest:
        return None, f"it describes {found.digest}"
    return found, ""


def _heads(key: ObjectKey, descriptor: Descriptor | None) -> list[int] | None:
    width = descriptor.fields.get("head_group") if descriptor is not None else None
    if key.chunk.group is None or not isinstance(width, int):
        return None
    return [key.chunk.group * width, (key.chunk.group + 1) * width]


def _others(store: ObjectStore, digest: str, descriptor: Descriptor | None) -> list[dict[str, object]]:
    """Return every other namespace of the store and in which fields it differs; None without anything to compare."""
    others: list[dict[str, object]] = []
    for info in store.list_keys(_DESCRIPTOR_PREFIX):
        other = digest_of_descriptor(info.key)
        found = _description(store, other)[0] if other is not None and other != digest else None
        if found is not None:
            others.append({"digest": found.digest, "differs_in": _differing(descriptor, found)})
    return sorted(others, key=lambda entry: str(entry["digest"]))


def _differing(mine: Descriptor | None, theirs: Descriptor) -> dict[str, list[object]] | None:
    if mine is None:
        return None
    names = sorted(mine.fields.keys() | theirs.fields.keys())
    pairs: dict[str, list[object]] = {name: [mine.fields.get(name), theirs.fields.get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _print(as_json: bool, explained: dict[str, object]) -> None:
    if as_json:
        print_json(explained)
        return
    key = ObjectKey.parse(str(explained["key"]))
    print(f"page       {key.page_hash}")
    print("           the hash stands for all tokens of the prefix up to the end of this page")
    print(f"layers     {key.chunk.layers.start} to {key.chunk.layers.stop - 1} of the whole model")
    group, heads = explained["head_group"], explained.get("heads")
    if group is None:
        print("heads      all: the model has MLA, its rows have no heads")
    elif isinstance(heads, list):
        print(f"KV heads   {heads[0]} to {heads[1] - 1} of the whole model (group {group})")
    else:
        print(f"KV heads   group {group}")
    print(f"namespace  {explained['namespace']}")
    if "in_store" in explained:
        _print_store(explained)


def _print_store(explained: dict[str, object]) -> None:
    fields, others = explained["fields"], explained.get("other_namespaces")
    if isinstance(fields, dict):
        for name, value in fields.items():
            print(f"           {printable(name)} = {printable(value)}")
    elif explained["description"] == _DAMAGED:
        print(f"           the description is damaged: {printable(explained['description_problem'])}")
    else:
        print("           no description in the store: cannot say what the namespace holds")
    if explained["in_store"]:
        modified = explained["modified_s"]
        age = human_time(modified if isinstance(modified, float) else None)
        print(f"object     in the store, {explained['nbytes']} bytes, {age}")
    else:
        nobody = "; it seems that nobody wrote a page of it here" if explained["description"] == _MISSING else ""
        print(f"object     not in the store{nobody}")
    if isinstance(others, list) and others:
        _print_others(others, compared=isinstance(fields, dict))


def _print_others(others: list[dict[str, dict[str, list[object]]]], *, compared: bool) -> None:
    if not compared:
        print(f"\nother namespaces here, not compared: {', '.join(printable(other['digest']) for other in others)}")
        return
    for other in others:
        print(f"\nreaders of {printable(other['digest'])} do not see it; theirs differs in")
        for name, (mine, theirs) in other["differs_in"].items():
            print(f"           {printable(name)}: {_set(mine)} here, {_set(theirs)} there")


def _set(value: object) -> str:
    return "not set" if value is None else repr(value)
