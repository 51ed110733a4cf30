"""Joins what the parts of gpu.sh left in a folder into one JSON file, and prints a line for each.

gpu_report.py FOLDER OUT.json: exits with 1 if a part, a test or a training failed.
"""

import csv
import json
import math
import platform
import re
import statistics
import sys
import time
from pathlib import Path


def table(path, *names):
    """The lines of a file of tab-separated fields; none if there is no file."""
    if not path.exists():
        return []
    return [dict(zip(names, line.split("\t"))) for line in path.read_text().splitlines()]


def word(path):
    return path.read_text().strip() or None if path.exists() else None


def machine(folder):
    with open(folder / "gpus.csv") as file:
        gpus = [{key: value.strip() for key, value in row.items()} for row in csv.DictReader(file)]
    return {"gpus": gpus, "emulated": (folder / "emulated").exists(), "toolkit": word(folder / "nvcc"), "commit": word(folder / "commit"), "host": platform.node(), "kernel": platform.release()}


def test_result(log, code):
    """What GoogleTest's output says; the program's exit code has the last word."""
    text = log.read_text(errors="replace")
    ran = re.search(r"(\d+) tests? from .* ran\. \((\d+) ms", text)
    result = {"cases": int(ran[1]) if ran else 0, "seconds": int(ran[2]) / 1000 if ran else None}
    skipped = re.search(r"skipped, (too few GPUs.*)", text)
    if code in (124, 137):
        result["result"] = "timed out" if text else "skipped: no time was left"
    elif code != 0 or ran is None:
        result["result"] = f"failed with {code}"
        result["failures"] = sorted(set(re.findall(r"^\[  FAILED  \] ([^\s.,]+\.[^\s,]+)", text, re.MULTILINE)))
        result["output"] = text[-2000:]
    else:
        result["result"] = f"skipped: {skipped[1]}" if skipped else "passed"
    return result


def tests(folder):
    return [{"name": row["name"], **test_result(folder / "tests" / f"{row['name']}.log", int(row["code"]))}
            for row in table(folder / "tests.tsv", "name", "code")]


def sanitizer(folder):
    found = []
    for row in table(folder / "sanitizer.tsv", "tool", "test", "code"):
        result = test_result(folder / "sanitizer" / f"{row['tool']}-{row['test']}.log", int(row["code"]))
        found.append({"tool": row["tool"], "name": row["test"], **result})
    return found


def benchmarks(folder):
    """(limits, operations): rates, each beside its limit of the same run and what is expected."""
    path = folder / "benchmark.json"
    if not path.exists() or not path.read_text().rstrip().endswith("}"):
        return {}, []
    limits, operations = {}, []
    for row in json.loads(path.read_text())["benchmarks"]:
        name = row["name"].removesuffix("/iterations:1/manual_time")
        unit = "GB/s" if "GB/s" in row else "TFLOP/s"
        if row.get("error_occurred"):
            operations.append({"name": name, "skipped": row["error_message"]})
        elif name.startswith("limit/"):
            limits[name.removeprefix("limit/")] = {"rate": row[unit], "unit": unit}
        else:
            entry = {"name": name, "microseconds": row["real_time"], "rate": row[unit], "unit": unit, "of_limit": row["of_limit"]}
            if "expected_low" in row:
                entry["expected"] = [row["expected_low"], row["expected_high"]]
                entry["as_expected"] = row["of_limit"] >= row["expected_low"]
            operations.append(entry)
    return limits, operations


def training(folder, name):
    """Medians without the first steps; the loss must stay finite and fall."""
    path, log = folder / "training" / name / "metrics.jsonl", folder / "training" / f"{name}.log"
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    steps = [json.loads(line) for line in lines]
    if len(steps) < 4:
        return {"name": name, "steps": len(steps), "result": "failed: too few steps", "output": log.read_text()[-2000:]}
    losses = [step["loss"] for step in steps]
    steady = steps[max(1, len(steps) // 10):]
    few = max(1, len(losses) // 10)
    rate = re.search(r"matrix products ([0-9.e+]+) GFLOP/s", log.read_text())
    result = {
        "name": name,
        "steps": len(steps),
        "loss_first": statistics.mean(losses[:few]),
        "loss_last": statistics.mean(losses[-few:]),
        "tokens_per_s": statistics.median(step["tokens_per_s"] for step in steady),
        "step_s": statistics.median(step["step_s"] for step in steady),
        "mfu": statistics.median(step["mfu"] for step in steady),
        "matrix_products_tflops": float(rate[1]) / 1000 if rate else None,
        "memory_peak": max(step["memory_peak"] for step in steps),
        "gpus_under_load": word(folder / "training" / f"{name}.csv"),  # SM and memory clocks (MHz), power (W), temperature (C)
    }
    # A loss that is not a number is null in JSON.
    if not all(isinstance(loss, (int, float)) and math.isfinite(loss) for loss in losses):
        result["result"] = "failed: the loss is not finite"
    elif result["loss_last"] >= result["loss_first"]:
        result["result"] = "failed: the loss does not fall"
    else:
        result["result"] = "passed"
    return result


def main():
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    parts = [{**row, "seconds": int(row["seconds"])} for row in table(folder / "parts.tsv", "name", "seconds", "state")]
    limits, operations = benchmarks(folder)
    trained = [training(folder, log.stem) for log in sorted((folder / "training").glob("*.log"))]
    report = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(folder),
        "parts": parts,
        "seconds": sum(part["seconds"] for part in parts),
        "tests": tests(folder),
        "limits": limits,
        "benchmarks": operations,
        "training": trained,
        "sanitizer": sanitizer(folder),
    }
    failures = [f"{kind} {entry['name']}: {entry['result']}" for kind in ("tests", "training", "sanitizer") for entry in report[kind]
                if entry["result"].startswith(("failed", "timed out"))]
    failures += [f"{part['name']}: {part['state']}" for part in parts if part["state"].startswith("failed")]
    report["failures"] = failures
    out.write_text(json.dumps(report, indent=1) + "\n")

    for part in parts:
        print(f"{part['name']:12} {part['seconds']:4} s  {part['state']}")
    for kind in ("tests", "sanitizer"):
        results = [entry["result"] for entry in report[kind]]
        print(f"{kind:12} {results.count('passed')} passed, {sum(r.startswith('skipped') for r in results)} skipped, of {len(results)}")
    for name, limit in limits.items():
        print(f"limit        {name:44} {limit['rate']:10.4g} {limit['unit']}")
    for entry in operations:
        if "skipped" in entry:
            print(f"benchmark    {entry['name']:44} skipped: {entry['skipped']}")
            continue
        expected = "-".join(f"{100 * share:.0f}" for share in sorted(set(entry.get("expected", [])))) or "?"
        print(f"benchmark    {entry['name']:44} {entry['rate']:10.4g} {entry['unit']:8} {100 * entry['of_limit']:6.1f} % of the limit, expected {expected} %")
    for entry in trained:
        if "mfu" in entry:
            print(f"training     {entry['name']:14} {entry['steps']} steps, {entry['tokens_per_s']:.0f} tokens/s, MFU {100 * entry['mfu']:.1f} %, "
                  f"loss {entry['loss_first']:.3f} to {entry['loss_last']:.3f}")
    for failure in failures:
        print(f"FAILED       {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
