"""Results as Markdown tables. Each table has a name, under which README.md and the documentation place it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.machine import Provenance
from benchmarks.rows import Finding, Row, Served
from benchmarks.subject import PAGE_CACHE
from benchmarks.subjects.factory import OURS, TITLES

Table = list[list[str]]
Setup = tuple[int, int]
"""Object size in bytes and threads."""

_OPERATIONS = {"write": "write", "read": "read", "ranged": "ranged read"}
_WARM = "page cache warm"
_READ_SHARE, _READ_LEAD, _WRITE_SHARE, _CHECKSUM_COST, _COPY_SHARE = 0.90, 1.5, 0.85, 0.10, 0.80
_RESTORE_SHARE = 0.80
_COPIED = "GB/s of payload and, in brackets, the share of one `copy_` of the same bytes; missed = below 80 %"
_ADAPTER_LEAD = 5.0
_ADAPTER = (
    "GB/s of payload and, in brackets, the share of the bare plug-in; times its own = the adapter over SGLang's file "
    "backend; missed = a get below 5 times that or below the bare plug-in"
)
_TREES = (
    "match in ns per token, insert and evict in us per prompt and, in brackets, the time of the fastest peer in the same "
    "round divided by it; missed = slower than that. SGLang evicts whole prompts, this project the pages that are asked for"
)


def transfer(rows: Sequence[Row]) -> str:
    """Return GB/s and the share of the limit, one line per subject, one column per size and thread count."""
    setups = _setups(rows)
    table = [["", *map(_setup_title, setups)]]
    for subject in _subjects(rows):
        by_setup = {_setup(row): row for row in rows if row.subject == subject}
        cells = [_speed(by_setup[setup]) if setup in by_setup else "" for setup in setups]
        table.append([TITLES[subject], *cells])
    raw = TITLES[rows[0].raw].removesuffix(" (the limit)")
    return _markdown(table) + _footer(rows[0], f"GB/s of payload and, in brackets, the share of {raw}")


def restored(rows: Sequence[Row]) -> str:
    """Return GB/s and the share of the backend alone; below 80 % the controller misses its target."""
    setups = _setups(rows)
    table = [["", *map(_setup_title, setups)]]
    for subject in _subjects(rows):
        by_setup = {_setup(row): row for row in rows if row.subject == subject}
        least = _RESTORE_SHARE if subject == "ours_restore" else 0.0
        table.append(
            [TITLES[subject], *(_judged(_speed(by_setup[s]), by_setup[s].share_of_raw >= least) for s in setups)]
        )
    return _markdown(table) + _footer(
        rows[0], "GB/s of payload and, in brackets, the share of the backend alone; missed = below 80 %"
    )


def existence(rows: Sequence[Row]) -> str:
    """Return microseconds per key, one line per subject."""
    table = [["", "call", "us per key, p50", "p20 to p80"]]
    for row in rows:
        spread = f"{row.p20_s / row.objects * 1e6:.2f} to {row.p80_s / row.objects * 1e6:.2f}"
        table.append([TITLES[row.subject], f"`{row.calls}`", f"{row.us_per_object:.2f}", spread])
    return _markdown(table) + _footer(rows[0], f"{rows[0].objects} keys, {rows[0].batch} a call, one thread")


def checksums(rows: Sequence[Row]) -> str:
    """Return what verifying costs, one column per size and thread count."""
    verified = [row for row in rows if row.subject == "ours"]
    table = [["", *(_setup_title(_setup(row)) for row in verified)]]
    table.append(["cost of verifying", *(_percent(1 - row.share_of_raw) for row in verified)])
    return _markdown(table) + _footer(rows[0], "share of throughput that verifying takes from the file backend alone")


def corruption(findings: Sequence[Finding]) -> str:
    """Return what a read of the damaged object gives, one line per fault, one column per subject."""
    subjects = list(dict.fromkeys(finding.subject for finding in findings))
    cells = {(finding.fault, finding.subject): finding for finding in findings}
    table = [["", *(TITLES[subject].split(",")[0] for subject in subjects)]]
    faults = dict.fromkeys(finding.fault for finding in findings)
    table += [[fault, *(_verdict(cells[fault, subject]) for subject in subjects)] for fault in faults]
    versions = ", ".join(
        f"{finding.subject} {finding.version}" for finding in {f.subject: f for f in findings}.values()
    )
    return _markdown(table) + _note(
        f"One of four objects damaged, all four read in one call, the damaged one stored again. {versions}.",
        findings[0].provenance,
    )


def targets(read: Sequence[Row], write: Sequence[Row], exists: Sequence[Row], checksum: Sequence[Row]) -> str:
    """Return each target beside what was measured, met or not."""
    setups = _setups(read)
    table = [["target", *map(_setup_title, setups)]]
    table.append(_target("verified read >= 90 % of preadv", _shares(read), _READ_SHARE, setups))
    table.append(_lead("verified read >= 1.5 x the best peer", read, setups))
    table += [_lead_over(peer, read, setups) for peer in _subjects(read) if peer not in (*OURS, "raw")]
    table.append(_target("write >= 85 % of pwritev", _shares(write), _WRITE_SHARE, setups))
    costs = {_setup(row): row.share_of_raw for row in checksum if row.subject == "ours"}
    line = ["checksum cost < 10 %"]
    line += [_judged(_percent(1 - costs[s]), 1 - costs[s] < _CHECKSUM_COST) if s in costs else "" for s in setups]
    table.append(line)
    return _markdown(table) + _existence_sentence(exists) + _footer(read[0], "medians over interleaved rounds")


def servers(rows: Sequence[Row]) -> str:
    """Return GB/s and the share of the minimal client, a line per operation and subject, a column per size and threads."""
    setups = _setups(rows)
    table = [["", "", *map(_setup_title, setups)]]
    by_place = {(row.operation, row.subject, _setup(row)): row for row in rows}
    for operation, subject in dict.fromkeys((row.operation, row.subject) for row in rows):
        found = [by_place.get((operation, subject, setup)) for setup in setups]
        least = {"write": _WRITE_SHARE}.get(operation, _READ_SHARE) if subject == "ours" else 0.0
        cells = [_judged(_speed(row), row.share_of_raw >= least) if row else "" for row in found]
        table.append([_OPERATIONS[operation], _title_at_a_server(subject, operation), *cells])
    limit = TITLES[rows[0].raw].removesuffix(" (the limit)")
    what = f"GB/s of payload and, in brackets, the share of {limit}; missed = below 90 % for reads or 85 % for writes"
    return _markdown(table) + _footer(rows[0], what, _place(rows[0]))


def break_even(rows: Sequence[Row]) -> str:
    """Return verified GB/s and microseconds of lookup per page, a line per backend, a column per cut."""
    cuts = list(dict.fromkeys(row.subject for row in rows))
    table = [["", "", *(f"{_cells(cut)} object{'s' if _cells(cut) > 1 else ''} a page" for cut in cuts)]]
    by_place = {(row.operation, row.subject): row for row in rows}
    for operation in dict.fromkeys(row.operation for row in rows):
        backend, kind = operation.split()
        found = [by_place[operation, cut] for cut in cuts]
        if kind == "read":
            table.append([backend, "verified read, GB/s", *(f"{row.gb_s or 0:.2f}" for row in found)])
        else:
            table.append([backend, "lookup, us a page", *(f"{row.us_per_object:.1f}" for row in found)])
    places = {row.operation.split()[0]: f"{row.threads} threads, {_place(row)}" for row in rows}
    where = "; ".join(f"{backend}: {place}" for backend, place in places.items())
    return _markdown(table) + _footer(rows[0], "pages of 2 MiB and 32 layers, 64 a call", where)


def copies(rows: Sequence[Row]) -> str:
    """Return GB/s and the share of a plain copy, a line per page size, direction and subject, a column per page count."""
    counts = sorted({row.objects for row in rows})
    table = [["page", "", "", *(f"{count} page{'s' if count > 1 else ''}" for count in counts)]]
    by_place = {(row.object_nbytes, row.operation, row.subject, row.objects): row for row in rows}
    for size, operation in dict.fromkeys((row.object_nbytes, row.operation) for row in rows):
        here = [row for row in rows if (row.object_nbytes, row.operation) == (size, operation)]
        for subject in _subjects(here):
            found = [by_place.get((size, operation, subject, count)) for count in counts]
            cells = [_copy_speed(row) if row else "" for row in found]
            table.append([_page_title(size), operation, TITLES[subject], *cells])
    return _markdown(table) + _footer(rows[0], _COPIED, f"{rows[0].page_cache}, {rows[0].threads} thread")


def relayouts(rows: Sequence[Row]) -> str:
    """Return GB/s and the share of a plain copy, a line per page size, layout and direction, a column per subject."""
    subjects = _subjects(rows)
    table = [["page", "host layout", "", *(TITLES[subject] for subject in subjects)]]
    by_place = {(row.object_nbytes, row.operation, row.subject): row for row in rows}
    for size, operation in dict.fromkeys((row.object_nbytes, row.operation) for row in rows):
        found = [by_place.get((size, operation, subject)) for subject in subjects]
        cells = [_copy_speed(row) if row else "" for row in found]
        table.append([_page_title(size), *operation.split(maxsplit=1), *cells])
    return _markdown(table) + _footer(rows[0], _COPIED, f"{rows[0].page_cache}, {rows[0].threads} thread")


def sglang(rows: Sequence[Row]) -> str:
    """Return GB/s and the share of the bare plug-in, a line per operation and threads, a column per backend."""
    subjects = _subjects(rows)
    table = [["", "threads", *(TITLES[subject] for subject in subjects), "times its own"]]
    by_place = {(row.operation, row.threads, row.subject): row for row in rows}
    for operation, threads in dict.fromkeys((row.operation, row.threads) for row in rows):
        found = [by_place[operation, threads, subject] for subject in subjects]
        table.append([operation, str(threads), *map(_speed, found), _lead_of_adapter(found)])
    return _markdown(table) + _footer(rows[0], _ADAPTER, f"{_WARM}, {rows[0].objects} pages a prompt")


def trees(rows: Sequence[Row]) -> str:
    """Return ns per token of matches and us per prompt of the rest, a line per operation and subject, a column per tree."""
    by_place = {(row.operation, row.object_nbytes, row.subject): row for row in rows}
    setups = list(dict.fromkeys((row.operation.split(", ")[1], row.object_nbytes) for row in rows))
    table = [["", "", *(f"{nbytes // 4:,} tokens, {pages}" for pages, nbytes in setups)]]
    for operation in dict.fromkeys(row.operation.split(", ")[0] for row in rows):
        for subject in _subjects(rows):
            found = [by_place.get((f"{operation}, {pages}", nbytes, subject)) for pages, nbytes in setups]
            table.append([operation, TITLES[subject], *(_tree_speed(row) if row else "" for row in found)])
    return _markdown(table) + _footer(rows[0], _TREES, f"{rows[0].page_cache}, one thread")


def consensus(rows: Sequence[Row]) -> str:
    """Return microseconds of a call and of a scheduler's step, with the share of the time without the checker."""
    operations = list(dict.fromkeys(row.operation for row in rows))
    table = [["", *operations]]
    for subject in _subjects(rows):
        found = {row.operation: row for row in rows if row.subject == subject}
        cells = [
            f"{found[name].us_per_object:,.2f} us ({_percent(found[name].share_of_raw)})" if name in found else ""
            for name in operations
        ]
        table.append([TITLES[subject], *cells])
    steps = max(rows, key=lambda row: row.threads)
    what = f"In brackets, the time of the first line of the column divided by it; steps of {steps.batch} requests"
    return _markdown(table) + _note(f"Medians of {steps.rounds} rounds. {what}.", steps.provenance)


def ticks(rows: Sequence[Row]) -> str:
    """Return microseconds of a scheduler's step, and of ticks with their share of it; a line per deployment."""
    subjects = _subjects(rows)
    table = [["", *(TITLES[subject] for subject in subjects)]]
    by_place = {(row.operation, row.subject): row for row in rows}
    for operation in dict.fromkeys(row.operation for row in rows):
        found = [by_place[operation, subject] for subject in subjects]
        shares = ["" if row.subject == row.raw else f" ({100 / row.share_of_raw:.2f} %)" for row in found]
        table.append(
            [operation, *(f"{row.us_per_object:,.1f} us{part}" for row, part in zip(found, shares, strict=True))]
        )
    return _markdown(table) + _footer(
        rows[0], f"in brackets, the share of a step of {rows[0].batch} requests", "the slowest rank of each"
    )


def serving(rows: Sequence[Served]) -> str:
    """Return cached tokens by tier and times to first token, a line per server."""
    head = ["L3", "", "prompt tokens", "cached: device", "host", "store", "TTFT p50", "mean", "p99", "whole run"]
    table = [head]
    for row in rows:
        cached = [f"{tokens:,}" for tokens in (row.cached_device, row.cached_host, row.cached_store)]
        times = (row.median_ttft_s, row.mean_ttft_s, row.p99_ttft_s)
        table.append(
            [row.store, row.moment, f"{row.prompt_tokens:,}", *cached]
            + [f"{seconds * 1000:,.0f} ms" for seconds in times]
            + [f"{row.duration_s:.1f} s"]
        )
    one = rows[0]
    what = f"{one.client}, `python -m sglang.benchmark.serving {one.traffic}`: {one.requests} requests"
    return _markdown(table) + _note(f"Medians of {one.rounds} rounds; {what}.", one.provenance)


TABLES: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "targets": (("file_read", "file_write", "file_exists", "checksum_cost"), targets),
    "file_read": (("file_read",), transfer),
    "file_write": (("file_write",), transfer),
    "file_exists": (("file_exists",), existence),
    "checksum_cost": (("checksum_cost",), checksums),
    "corruption": (("corruption",), corruption),
    "gather_scatter": (("gather_scatter",), copies),
    "host_relayout": (("host_relayout",), relayouts),
    "radix_tree": (("radix_tree",), trees),
    "restore": (("restore",), restored),
    "sglang_dynamic": (("sglang_dynamic",), sglang),
    "redis_transfer": (("redis_transfer",), servers),
    "s3_transfer": (("s3_transfer",), servers),
    "mooncake_transfer": (("mooncake_transfer",), servers),
    "break_even": (("break_even",), break_even),
    "bench_serving": (("bench_serving",), serving),
    "consensus_overhead": (("consensus_overhead",), consensus),
    "pp_sync": (("pp_sync",), ticks),
}
"""Table name -> the cases whose results it needs, and how it is made of them."""


def _shares(rows: Sequence[Row]) -> dict[Setup, float]:
    return {_setup(row): row.share_of_raw for row in rows if row.subject == "ours"}


def _target(title: str, shares: dict[Setup, float], least: float, setups: Iterable[Setup]) -> list[str]:
    cells = [_judged(_percent(shares[s]), shares[s] >= least) if s in shares else "" for s in setups]
    return [title, *cells]


def _lead(title: str, rows: Sequence[Row], setups: Iterable[Setup]) -> list[str]:
    cells = []
    for setup in setups:
        here = [row for row in rows if _setup(row) == setup]
        peers = [row for row in here if row.subject not in (*OURS, "raw")]
        mine = [row for row in here if row.subject == "ours"]
        if not peers or not mine:
            cells.append("no peer measured")
            continue
        best = min(peers, key=lambda row: row.p50_s)
        lead = best.p50_s / mine[0].p50_s
        cells.append(_judged(f"{lead:.2f} x {TITLES[best.subject]}", lead >= _READ_LEAD))
    return [title, *cells]


def _lead_over(peer: str, rows: Sequence[Row], setups: Iterable[Setup]) -> list[str]:
    """Return how many times faster this project's verified read is than *peer*'s, without a judgement."""
    p50_s = {(_setup(row), row.subject): row.p50_s for row in rows}
    pairs = [(p50_s.get((setup, peer)), p50_s.get((setup, "ours"))) for setup in setups]
    return [f"verified read, times {TITLES[peer]}", *(f"{a / b:.2f}" if a and b else "" for a, b in pairs)]


def _existence_sentence(rows: Sequence[Row]) -> str:
    us = {row.subject: row.us_per_object for row in rows}
    theirs = [us[name] for name in ("sglang", "sglang_v2") if name in us]
    if not theirs or "ours" not in us:
        return ""
    verdict = "met" if us["ours"] <= min(theirs) else "missed"
    return f"\nExistence per key: {us['ours']:.2f} us, SGLang {min(theirs):.2f} us: {verdict}.\n"


def _title_at_a_server(subject: str, operation: str) -> str:
    """Return the subject's title; only reads are verified."""
    title = TITLES[subject]
    return title.removesuffix(", verified").removesuffix(", unverified") if operation == "write" else title


def _place(row: Row) -> str:
    return _WARM if row.page_cache == PAGE_CACHE else row.page_cache


def _cells(subject: str) -> int:
    return int(subject.removeprefix("cut_"))


def _setup(row: Row) -> Setup:
    return row.object_nbytes, row.threads


def _setups(rows: Iterable[Row]) -> list[Setup]:
    return sorted({_setup(row) for row in rows}, key=lambda setup: (-setup[0], setup[1]))


def _setup_title(setup: Setup) -> str:
    nbytes, threads = setup
    size = f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
    return f"{size}, {threads} thread{'s' if threads > 1 else ''}"


def _subjects(rows: Iterable[Row]) -> list[str]:
    seen = {row.subject for row in rows}
    return [subject for subject in TITLES if subject in seen]


def _speed(row: Row) -> str:
    if row.gb_s is None:
        return ""
    return f"{row.gb_s:.2f} ({_percent(row.share_of_raw)})"


def _copy_speed(row: Row) -> str:
    is_met = row.share_of_raw >= _COPY_SHARE or not row.subject.startswith("ours")
    return _judged(_speed(row), is_met)


def _tree_speed(row: Row) -> str:
    is_match = row.operation.startswith("match")
    per_token = row.us_per_object / row.object_nbytes * 4000
    speed = f"{per_token:.2f} ns" if is_match else f"{row.us_per_object:.0f} us"
    return _judged(f"{speed} ({row.share_of_raw:.1f}x)", row.share_of_raw >= 1 or row.subject != "our_tree")


def _lead_of_adapter(rows: Sequence[Row]) -> str:
    """Return how many times SGLang's own backend the adapter is; a get has to lead it and to reach the bare plug-in."""
    by_subject = {row.subject: row for row in rows}
    ours, theirs = by_subject["sglang_ours"], by_subject["sglang_file"]
    lead = theirs.p50_s / ours.p50_s
    is_get = ours.operation.startswith("get")
    return _judged(f"{lead:.1f}x", not is_get or (lead >= _ADAPTER_LEAD and ours.share_of_raw >= 1))


def _page_title(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"


def _verdict(finding: Finding) -> str:
    text = finding.read if finding.healed else f"{finding.read}, and stays so"
    lost = 3 - finding.neighbours
    return f"{text}; {lost} neighbours lost" if lost else text


def _judged(text: str, is_met: bool) -> str:
    return text if is_met else f"{text} (missed)"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _markdown(table: Table) -> str:
    head, *body = table
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _footer(row: Row, what: str, place: str = _WARM) -> str:
    return _note(f"{what}; p50 of {row.rounds} rounds, {place}.", row.provenance)


def _note(text: str, where: Provenance) -> str:
    noise = f" The machine was busy (load {where.load1}): take the figures with care." if where.noisy else ""
    place = f"{where.cpu}, {where.cores} cores, {where.filesystem}, Python {where.python}, torch {where.torch}"
    origin = f"{where.date}, commit {where.commit}, `{where.command}`"
    return f"\n{text[0].upper()}{text[1:]} {place}; {origin}.{noise}\n"
