"""What bench/peers/run needs beside the peers: options as JSON for Keylane, and all results as a Markdown table."""

import json
import sys

TEXT = ("bootstrap", "topic", "distribution")
OTHERWISE = {"warm-up-seconds": 5, "seconds": 20}
COLUMNS = ("handler", "keys", "peer", "messages/s", "possible/s", "share", "order kept", "CPU s", "CPU µs a message",
           "max RSS MB", "handlers at once")


def options(words):
    names, values = words[::2], words[1::2]
    for name in names:
        if not name.startswith("--"):
            sys.exit(f"bench/peers: not an option with a value: {name}")
    if len(names) != len(values):
        sys.exit(f"bench/peers: {names[-1]} has no value")
    return {name.removeprefix("--"): value for name, value in zip(names, values)}


def job(given):
    """As `keylane bench --peer` takes it."""
    given = {name: value for name, value in given.items() if name not in ("peer", "concurrency", "partitions")}
    wanted = {**OTHERWISE, **{name: value if name in TEXT else int(value) for name, value in given.items()}}
    wanted.setdefault("warm-up", max(1, wanted.get("messages", 0) // 10))
    return wanted


def row(one):
    share, possible = one["share_of_possible"], one["possible_per_second"]
    broken = one["out_of_order"]
    return (
        f"{one['handler_ms']} ms", one["distribution"], f"{one['peer']} {one['version']}",
        f"{one['messages_per_second']:,.0f}", "–" if possible is None else f"{possible:,.0f}",
        "–" if share is None else f"{share:.1%}", "yes" if broken == 0 else f"NO: {broken:,} out of order",
        f"{one['cpu_seconds']:.2f}",
        f"{one['cpu_seconds'] * 1e6 / one['messages']:,.2f}" if one["messages"] else "–",
        f"{one['max_rss_bytes'] / 1e6:,.0f}", f"{one['concurrency']:,}",
    )


def table(path):
    with open(path) as file:
        lines = [COLUMNS, ("---",) * len(COLUMNS), *(row(json.loads(line)) for line in file)]
    for line in lines:
        print(f"| {' | '.join(line)} |")


verb, *words = sys.argv[1:]
if verb == "table":
    table(words[0])
elif verb == "job":
    print(json.dumps(job(options(words))))
elif verb == "option":
    name, *words = words
    print(options(words).get(name) or sys.exit(f"bench/peers: --{name} is missing"))
