"""`hicache stat`: size, age and trailer of one object, without reading its payload."""

from __future__ import annotations

import argparse

from hicache_storage.cli import exit_codes
from hicache_storage.cli.options import add_command, add_json_argument, add_store_arguments, open_to_look
from hicache_storage.cli.output import human_nbytes, human_time, print_json, printable, say
from hicache_storage.errors import LayoutError
from hicache_storage.layout import FOOTER_NBYTES, Footer, ObjectKey, RangeVerifier
from hicache_storage.store import ObjectStore
from hicache_storage.types import ObjectInfo

_EXAMPLES = "hicache stat KEY --store file:///mnt/kv"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to *commands*."""
    parser = add_command(
        commands,
        "stat",
        summary="show one object's size, age and trailer",
        description="Show an object's size, age and what its trailer says. Exit status 1 if it is not there, 4 if its "
        "trailer is damaged or another object's. `hicache verify` reads the payload too.",
        examples=_EXAMPLES,
    )
    parser.add_argument("key", metavar="KEY", help="an object's key, as `hicache ls --objects` prints it")
    add_store_arguments(parser)
    add_json_argument(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show the object; MISSING or CORRUPT if that is what it is."""
    with open_to_look(args) as store:
        found = _look(store, args.key)
    if found is None:
        say(f"hicache: no object {args.key!r} in this store")
        return exit_codes.MISSING
    info, footer, problem = found
    has_trailer = _is_page_object(args.key)
    if not has_trailer:
        problem = "none due: this is no page object"
    if args.json:
        print_json(
            {
                "key": info.key,
                "nbytes": info.nbytes,
                "modified_s": info.modified_s,
                "payload_nbytes": footer.payload_nbytes if footer else None,
                "block_nbytes": footer.block_nbytes if footer else None,
                "problem": problem or None,
            }
        )
    else:
        print(f"key       {printable(info.key)}\nsize      {info.nbytes} bytes ({human_nbytes(info.nbytes)})")
        print(f"modified  {human_time(info.modified_s)}")
        if footer:
            print(f"payload   {footer.payload_nbytes} bytes in checksummed blocks of {footer.block_nbytes}")
        else:
            print(f"trailer   {problem}")
    return exit_codes.DONE if footer or not has_trailer else exit_codes.CORRUPT


def _is_page_object(key: str) -> bool:
    try:
        ObjectKey.parse(key)
    except LayoutError:
        return False
    return True


def _look(store: ObjectStore, key: str) -> tuple[ObjectInfo, Footer | None, str] | None:
    """Return what is known of the object and its footer, or why there is none; None if it is not there."""
    info = store.stat(key)
    if info is None:
        return None
    if info.nbytes < FOOTER_NBYTES:
        return info, None, f"an object of {info.nbytes} bytes has no room for a footer of {FOOTER_NBYTES}"
    tail = _tail(store, info, FOOTER_NBYTES)
    if tail is None:
        return None
    try:
        footer = Footer.parse(tail, info.nbytes)
    except LayoutError as error:
        return info, None, str(error)
    trailer = _tail(store, info, info.nbytes - footer.payload_nbytes)
    if trailer is None:
        return None
    nothing = memoryview(b"")
    wrong = RangeVerifier(key, footer.block_nbytes, footer.payload_nbytes, 0, nothing).mismatch(trailer)
    return (info, footer, "") if wrong is None else (info, None, wrong)


def _tail(store: ObjectStore, info: ObjectInfo, nbytes: int) -> memoryview | None:
    """Return the last *nbytes* of the object, None if it is gone."""
    tail = memoryview(bytearray(nbytes))
    found = store.read_into(info.key, info.nbytes - nbytes, [tail], object_nbytes=info.nbytes)
    return tail if found else None
