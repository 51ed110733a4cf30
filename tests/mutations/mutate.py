"""Takes away each barrier, event and wait of the cuda code in turn, and sees which test notices.

  mutate.py BUILD [--only REGEX] [--list] [--results FILE] [--table FILE]

BUILD is a build folder of Ninja in which the programs of checks.py are built. --only takes the places whose name
(FILE | TEXT | NUMBER) matches. --results keeps what was found, one line of JSON a place, and goes on from there.
--table writes it into a file of Markdown, between the lines of its markers. The exit code is 1 if a mutation that
equivalent.txt does not list went unnoticed.
"""
import argparse
import json
import os
import re
import sys
import time

import checks
import sites
import workshop

HERE = os.path.dirname(os.path.abspath(__file__))
BEGIN, END = "<!-- mutations: begin -->", "<!-- mutations: end -->"


def read_equivalent():
    """Why the program means the same without it, by name of the place."""
    reasons = {}
    with open(os.path.join(HERE, "equivalent.txt"), encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                name, _, reason = line.strip().partition(" => ")
                reasons[name] = reason
    return reasons


class Baseline:
    """A check must pass while every place is there, or what it says means nothing. Its time gives the limit."""

    def __init__(self, shop):
        self.shop, self.seconds = shop, {}

    def limit(self, check):
        if check not in self.seconds:
            begin = time.monotonic()
            found = self.shop.run(check, 600)
            self.seconds[check] = None if found else time.monotonic() - begin
            if found:
                print(f"{check.name} is left out, it fails without a mutation: {found.detail}", flush=True)
        seconds = self.seconds[check]
        return None if seconds is None else 5 * seconds + 30

    def forget(self, check):
        del self.seconds[check]


def examine(shop, baseline, site):
    """Who notices that the place is gone, and how."""
    for check in checks.checks_of(site.file):
        if baseline.limit(check) is None:
            continue
        found = shop.run(check, baseline.limit(check), site.id)
        if found and found.how == "time-out":  # or has the machine become slow?
            baseline.forget(check)
            found = shop.run(check, baseline.limit(check) or 600, site.id)
        if found:
            return check.name, *found
    return "nobody", "", ""


def read_results(path):
    if not path or not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return {result["name"]: result for result in map(json.loads, file)}


ADDRESS = re.compile(r" at 0x[0-9a-f]+|, block \d+ thread \d+")


def cell(text, most=150):
    text = ADDRESS.sub("", text)
    text = text if len(text) <= most else text[:most - 3] + "..."
    return text.replace("|", "\\|")


def table(places, results, reasons):
    lines, counts, missing = ["| place | without | noticed by | how |", "|---|---|---|---|"], {}, {}
    for site in places:
        result = results.get(site.name)
        if result is None:
            missing[site.file] = missing.get(site.file, 0) + 1
            continue
        who, kind, how = result["who"], result["how"], result["detail"]
        if who == "nobody":
            how = reasons.get(site.name, "")
            kind = "the same program" if how else "not noticed"
        elif kind != "finding":
            how = f"{kind}: {how}"
        counts[kind] = counts.get(kind, 0) + 1
        lines.append(f"| `{site.place}` | `{cell(site.text, 60)}` | {who} | {cell(how).replace('<', '&lt;')} |")
    total = [f"{kind}: {count}" for kind, count in sorted(counts.items(), key=lambda pair: -pair[1])]
    text = f"{sum(counts.values())} of {len(places)} places. {', '.join(total)}.\n\n" + "\n".join(lines)
    if missing:
        text += "\n\nNot tried: " + ", ".join(f"`{file}` {count}" for file, count in missing.items()) + "."
    return text


def write_table(path, text):
    with open(path, encoding="utf-8") as file:
        before, _, rest = file.read().partition(BEGIN)
    after = rest.partition(END)[2]
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--folder", help="for the copy and the changed programs (BUILD/mutations)")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--results")
    parser.add_argument("--table")
    options = parser.parse_args()

    root = os.path.dirname(os.path.dirname(HERE))
    places = sites.all_sites(root)
    reasons = read_equivalent()
    for name in reasons.keys() - {site.name for site in places}:
        sys.exit(f"equivalent.txt: there is no {name}")
    chosen = [site for site in places if re.search(options.only, site.name)]
    if not chosen:
        sys.exit(f"no place matches {options.only}")
    if options.list:
        for site in chosen:
            print(f"{site.place}  {site.name}")
        return 0

    results = read_results(options.results)
    todo = [site for site in chosen if site.name not in results]
    if todo:
        shop = workshop.Workshop(options.build, options.folder or os.path.join(options.build, "mutations"), places)
        shop.prepare({site.file for site in todo})
        baseline = Baseline(shop)
    for site in todo:
        begin = time.monotonic()
        who, how, detail = examine(shop, baseline, site)
        results[site.name] = {"name": site.name, "who": who, "how": how, "detail": detail}
        print(f"{site.place}: {site.text}: {who} {how}: {detail} ({time.monotonic() - begin:.0f} s)", flush=True)
        if options.results:
            with open(options.results, "a", encoding="utf-8") as file:
                file.write(json.dumps(results[site.name]) + "\n")
    if options.table:
        write_table(options.table, table(places, results, reasons))
    unnoticed = [site for site in chosen if results[site.name]["who"] == "nobody" and site.name not in reasons]
    for site in unnoticed:
        print(f"nobody notices that {site.place} lacks {site.text}")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
