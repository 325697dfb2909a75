"""Proves the SGLang adapter on a GPU server: real models, real CUDA copies, several TP sizes, one store.

    python check.py --model Qwen/Qwen2.5-7B-Instruct --store file:///mnt/kv --writer-tp 2 --reader-tp 1 2

needs sglang==0.5.23 and hicache-storage in one environment. It starts servers one after the other and asks each the
same prompts, greedily: without L3 (what is right, and how long it takes), a writer that fills the store, readers that
start with nothing but the store, and, where the store is a folder, a reader of a store with damaged objects. A row of
the table is a server; the exit status is 1 if one of them is not as it should be.

Texts are compared at equal TP size only: another one adds up in another order, and a model may then choose another
word, with or without a cache.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PORT = 31997
START_S, ANSWER_S = 1200.0, 300.0
WORDS = (
    "the",
    "cache",
    "keeps",
    "what",
    "was",
    "computed",
    "so",
    "that",
    "nobody",
    "computes",
    "it",
    "again",
    "while",
    "pages",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt's answer: its text, the seconds until its first token, and where its tokens came from."""

    text: str
    first_token_s: float
    prompt_tokens: int
    from_store: int


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table; *wrong* says what is not as it should be."""

    server: str
    answers: Sequence[Answer]
    wrong: str

    def line(self) -> str:
        seconds = sorted(answer.first_token_s for answer in self.answers)
        tokens = sum(answer.prompt_tokens for answer in self.answers)
        stored = sum(answer.from_store for answer in self.answers)
        return f"{self.server:28} {tokens:8} {stored:8} {seconds[len(seconds) // 2]:10.3f}  {self.wrong or 'ok'}"


def prompts(count: int, words: int) -> list[str]:
    """Return prompts that share no beginning."""

    def text(number: int) -> str:
        return " ".join(WORDS[(word * 5 + number) % len(WORDS)] for word in range(words))

    return [f"Text {number}. {text(number)}" for number in range(count)]


def server_command(options: argparse.Namespace, tp: int, *, store: str | None) -> list[str]:
    """Return what starts a server, with the store behind it or without L3."""
    command = [*shlex.split(options.launch), "--model-path", options.model, "--tp-size", str(tp), "--port", str(PORT)]
    command += ["--page-size", str(options.page_size), "--enable-hierarchical-cache"]
    command += ["--hicache-mem-layout", options.layout, "--hicache-write-policy", "write_through"]
    command += [
        "--hicache-io-backend",
        "direct" if options.layout in ("layer_first", "page_first_direct") else "kernel",
    ]
    if store is None:
        return command
    fleet = sorted({options.writer_tp, *options.reader_tp})
    extra = {
        "backend_name": "hicache_storage",
        "module_path": "hicache_storage.engine_integration.adapters.sglang",
        "class_name": "HiCacheUnified",
        "interface_v1": 1,
        "prefetch_threshold": options.page_size,
        "backend": store,
        "topologies": ",".join(f"tp{size}" for size in fleet),
        **json.loads(options.extra_config),
    }
    command += ["--hicache-storage-backend", "dynamic", "--hicache-storage-prefetch-policy", "wait_complete"]
    return [*command, "--hicache-storage-backend-extra-config", json.dumps(extra)]


@contextmanager
def serving(options: argparse.Namespace, name: str, tp: int, *, store: str | None) -> Iterator[None]:
    """Run a server for the block; its log is in ``<name>.log``.

    Raises:
        RuntimeError: it ended or was not ready in time.
    """
    command = server_command(options, tp, store=store)
    print(f"{name}: {shlex.join(command)}", file=sys.stderr)
    log = Path(f"{name.replace(' ', '-')}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _wait_until_ready(process, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}; see {log}")
        try:
            _call("/health", timeout_s=5)
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"the server was not ready after {START_S:.0f} s; see {log}")


def _call(path: str, body: dict[str, object] | None = None, timeout_s: float = ANSWER_S) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        answer: bytes = response.read()
    return answer


def ask(prompt: str, new_tokens: int) -> Answer:
    """Return the greedy answer to *prompt*; the time to its first token includes the restore."""
    body = {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens}, "stream": True}
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/generate", data, {"Content-Type": "application/json"})
    started, first_token_s, last = time.monotonic(), 0.0, b"{}"
    with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
        for line in response:
            if line.startswith(b"data: {"):
                first_token_s = first_token_s or time.monotonic() - started
                last = line.removeprefix(b"data: ")
    found = json.loads(last)
    meta = found["meta_info"]
    details = meta.get("cached_tokens_details") or {}
    return Answer(found["text"], first_token_s, meta["prompt_tokens"], details.get("storage") or 0)


def ask_all(options: argparse.Namespace) -> list[Answer]:
    """Return the answers to every prompt, one after the other."""
    return [ask(prompt, options.new_tokens) for prompt in prompts(options.prompts, options.words)]


def filled(options: argparse.Namespace) -> list[Answer]:
    """Fill the store; return the answers of the same server once its own tiers are empty and all came from the store."""
    ask_all(options)
    deadline = time.monotonic() + ANSWER_S
    while True:
        _call("/flush_cache", {}, timeout_s=60)
        answers = ask_all(options)
        if all(_is_restored(options, answer) for answer in answers) or time.monotonic() > deadline:
            return answers
        time.sleep(1)


def _is_restored(options: argparse.Namespace, answer: Answer) -> bool:
    """Return whether every full page but the one that holds the last token came from the store."""
    return bool(answer.from_store >= (answer.prompt_tokens - 1) // options.page_size * options.page_size)


def judge(options: argparse.Namespace, answers: Sequence[Answer], right: Sequence[Answer], *, restored: bool) -> str:
    """Return what is wrong with *answers*, given what the same TP size says without L3."""
    complaints = []
    if differing := sum(got.text != want.text for got, want in zip(answers, right, strict=True)):
        complaints.append(f"{differing} of {len(right)} texts differ")
    if restored and (missing := sum(not _is_restored(options, answer) for answer in answers)):
        complaints.append(f"{missing} of {len(answers)} prompts were not restored whole")
    return ", ".join(complaints)


def damage(folder: Path) -> int:
    """Flip a byte in every third object below *folder*; return how many were damaged."""
    victims = sorted(path for path in (folder / "objects").rglob("*") if path.is_file())[::3]
    for path in victims:
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 0x10
        path.write_bytes(content)
    return len(victims)


def checks(options: argparse.Namespace) -> Iterator[Check]:
    """Run the servers one after the other."""
    right: dict[int, list[Answer]] = {}
    for tp in sorted({options.writer_tp, *options.reader_tp}):
        with serving(options, f"cold tp{tp}", tp, store=None):
            right[tp] = ask_all(options)
        yield Check(f"tp{tp} without L3", right[tp], "")
    with serving(options, "writer", options.writer_tp, store=options.store):
        answers = filled(options)
    wrong = judge(options, answers, right[options.writer_tp], restored=True)
    yield Check(f"tp{options.writer_tp} writes, reads its own", answers, wrong)
    for tp in options.reader_tp:
        with serving(options, f"reader tp{tp}", tp, store=options.store):
            answers = ask_all(options)
        yield Check(f"tp{tp} reads", answers, judge(options, answers, right[tp], restored=True))
    if options.store.startswith("file://"):
        count = damage(Path(options.store.removeprefix("file://")))
        tp = options.reader_tp[0]
        with serving(options, f"damaged tp{tp}", tp, store=options.store):
            answers = ask_all(options)
        yield Check(f"tp{tp}, {count} objects damaged", answers, judge(options, answers, right[tp], restored=False))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--model", required=True, help="as SGLang's --model-path takes it")
    found.add_argument("--store", required=True, help="URL of the store: file:///mnt/kv, s3://bucket, redis://host")
    found.add_argument("--writer-tp", type=int, default=2)
    found.add_argument("--reader-tp", type=int, nargs="+", default=[1, 2])
    found.add_argument("--layout", default="page_first_direct", help="layout of the host pool")
    found.add_argument("--page-size", type=int, default=64)
    found.add_argument("--prompts", type=int, default=8)
    found.add_argument("--words", type=int, default=4000, help="length of a prompt")
    found.add_argument("--new-tokens", type=int, default=32)
    found.add_argument("--extra-config", default="{}", help="more options of the adapter, as JSON")
    found.add_argument(
        "--launch",
        default=f"{sys.executable} -m sglang.launch_server --enable-deterministic-inference",
        help="what starts a server; options for all of them go here",
    )
    return found


def main(arguments: Sequence[str]) -> int:
    """Run every check and print a line for each; return 1 if something is not as it should be."""
    options = parser().parse_args(arguments)
    print(f"{'server':28} {'tokens':>8} {'from L3':>8} {'TTFT s':>10}")
    wrong = 0
    for check in checks(options):
        print(check.line(), flush=True)
        wrong += bool(check.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (RuntimeError, urllib.error.URLError) as error:
        sys.exit(f"check.py: {error}")
