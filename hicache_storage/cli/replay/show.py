"""How a replay shows what it has found: tables, or one JSON document."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_storage.cli.output import counted, human_nbytes, print_json, print_table
from hicache_storage.engine_integration.replay import InstanceReport, ReplayOptions, Report, Trace


def print_report(trace: Trace, options: ReplayOptions, report: Report) -> None:
    """Write the tables to stdout."""
    total = report.total
    print(
        f"trace      {trace.path.name}: {counted(total.num_requests, 'request')}, {trace.summary.num_tokens:,} tokens"
    )
    print(f"instances  {', '.join(one.name for one in report.instances)}; pages of {options.shape.page_tokens} tokens")
    print(f"tiers      {_sizes(options)}")
    if total.num_refused:
        print(f"refused    {counted(total.num_refused, 'request')}: longer than the device")
    print()
    _print_hits(trace, report)
    print()
    if len(report.instances) > 1:
        _print_instances(report.instances)
        print()
    _print_moves(report)
    print()
    print_table(["prefetch", "requests"], total.prefetches.items())
    if total.num_judged:
        verdict = "all right" if not total.num_wrong else f"{total.num_wrong} WRONG"
        print(f"\npages compared byte for byte: {total.num_judged}, {verdict}")


def print_document(trace: Trace, options: ReplayOptions, report: Report) -> None:
    """Write everything as JSON to stdout."""
    print_json(
        {
            "trace": str(trace.path),
            "trace_tokens": trace.summary.num_tokens,
            "reusable_tokens": report.reusable_tokens,
            "page_tokens": options.shape.page_tokens,
            "page_nbytes": options.shape.page_nbytes,
            "store_pages": report.store_pages,
            "store_pages_evicted": report.store_evicted,
            "total": _document(report.total),
            "instances": [_document(one) for one in report.instances],
        }
    )


def _sizes(options: ReplayOptions) -> str:
    host = options.host.text if options.host else "unbounded"
    if options.tiers.host_nbytes is not None:
        host = f"{human_nbytes(options.tiers.host_nbytes)} for each rank"
    elif options.tiers.host_ratio is not None:
        host = f"{options.tiers.host_ratio:g} x device"
    device = options.device.text if options.device else "unbounded"
    store = options.store.text if options.store else "unbounded"
    return f"device {device}, host {host}, store {store}"


def _print_hits(trace: Trace, report: Report) -> None:
    total, cached = report.total, report.total.cached
    rows = [
        ("device hits", cached.device),
        ("host hits", cached.host),
        ("store hits", cached.store),
        ("all hits", cached.total),
        ("reusable at best", report.reusable_tokens),
        ("computed", total.prompt_tokens - cached.total),
    ]
    if total.num_refused:
        rows.append(("refused", trace.summary.num_tokens - total.prompt_tokens))
    print_table(
        ["prompts", "tokens", "%"],
        [[name, f"{tokens:,}", _percent(tokens, trace.summary.num_tokens)] for name, tokens in rows],
    )


def _print_instances(instances: Sequence[InstanceReport]) -> None:
    rows = []
    for number, one in enumerate(instances):
        shares = (one.cached.device, one.cached.host, one.cached.store, one.cached.total)
        rows.append([number, one.name, one.num_requests, *(_percent(tokens, one.prompt_tokens) for tokens in shares)])
    print_table(["instance", "topology", "requests", "device %", "host %", "store %", "hit %"], rows)


def _print_moves(report: Report) -> None:
    total = report.total
    rows: list[list[object]] = [[way, moved.pages, human_nbytes(moved.nbytes)] for way, moved in total.moved.items()]
    print_table(["moved", "pages", "bytes"], rows)
    print()
    evicted = {**total.evicted, "store": "-" if report.store_evicted is None else report.store_evicted}
    print_table(["evicted from", "pages"], evicted.items())


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else "-"


def _document(one: InstanceReport) -> dict[str, object]:
    cached = one.cached
    return {
        "topology": one.name,
        "requests": one.num_requests,
        "requests_refused": one.num_refused,
        "prompt_tokens": one.prompt_tokens,
        "hit_tokens": {"device": cached.device, "host": cached.host, "store": cached.store, "all": cached.total},
        "hit_rate": cached.total / one.prompt_tokens if one.prompt_tokens else None,
        "pages_evicted": dict(one.evicted),
        "moved": {way: {"pages": moved.pages, "nbytes": moved.nbytes} for way, moved in one.moved.items()},
        "prefetches": dict(one.prefetches),
        "pages_judged": one.num_judged,
        "pages_wrong": one.num_wrong,
    }
