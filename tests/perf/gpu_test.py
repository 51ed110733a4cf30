"""perf/gpu.sh on a machine without a GPU: the tools of a GPU machine are scripts that answer as theirs do, the device is emulated.

The environment names the build folder: BUILD.
"""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "perf" / "gpu.sh"
TOOLS = {
    "nvidia-smi": "echo 'NVIDIA Imagined, 590.00, 9.0, 81559, 1980, 2619, 345, 2619, 700.00, 31'",
    "nvcc": "echo 'Cuda compilation tools, release 13.0, V13.0.88'",
    # --tool NAME --error-exitcode 99 PROGRAM ...
    "compute-sanitizer": 'tool=$2; shift 4; "$@" || exit; [ "$tool" != initcheck ] || exit 99',
}


class GpuScript(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_script(self, *options, without=(), emulated=True, **tools):
        """The exit code, stderr, and what the file says."""
        for name, text in {**TOOLS, **tools}.items():
            path = self.folder / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        path = [place for place in os.environ["PATH"].split(":") if not any((Path(place) / name).exists() for name in without)]
        for name in without:
            (self.folder / name).unlink()
        if not any((Path(place) / "bash").exists() for place in path):
            self.skipTest(f"{without} lie among the system's programs")
        environment = {**os.environ, "PATH": ":".join([str(self.folder), *path]), "CUDAToolkit_ROOT": str(self.folder), "CARTAN_GPU_EMULATED": "1" if emulated else ""}
        out = self.folder / "gpu.json"
        done = subprocess.run(["bash", str(SCRIPT), "--out", str(out), *options], capture_output=True, text=True, env=environment, check=False)
        return done.returncode, done.stderr, json.loads(out.read_text()) if out.exists() else None

    def test_everything_but_the_speed(self):
        code, stderr, report = self.run_script("--build", os.environ["BUILD"], "--tests", "^(sums_test.cuda|traffic_test.cuda1)$")
        # The sanitizer's imagined finding is the only failure.
        self.assertEqual(report["failures"], ["sanitizer sums_test.cuda: failed with 99"], stderr)
        self.assertEqual(code, 1)
        self.assertEqual(report["machine"]["gpus"][0]["name"], "NVIDIA Imagined")
        self.assertEqual(report["machine"]["toolkit"], "13.0.88")
        self.assertEqual([part["name"] for part in report["parts"]], ["build", "tests", "benchmark", "data", "train-135m", "graphs", "train-1b", "sanitizer"])
        for part in report["parts"]:
            self.assertTrue(part["state"].startswith("done"), part)
        self.assertEqual([(test["name"], test["result"]) for test in report["tests"]], [("sums_test.cuda", "passed"), ("traffic_test.cuda1", "passed")])
        self.assertGreater(report["tests"][0]["cases"], 10)
        self.assertEqual({run["tool"]: run["result"] for run in report["sanitizer"]}, {"memcheck": "passed", "racecheck": "passed", "initcheck": "failed with 99"})
        self.assertEqual(set(report["limits"]), {"memory", "bf16_product", "fp32_product"})
        names = {entry["name"].split("/")[0] for entry in report["benchmarks"]}
        self.assertTrue({"rmsnorm_forward", "attention_backward_128", "linear_backward_weight", "cross_entropy", "adamw", "tree_sum"} <= names, names)
        for entry in report["benchmarks"]:
            self.assertGreater(entry["of_limit"], 0, entry)
        self.assertEqual([(run["name"], run["result"]) for run in report["training"]], [(name, "passed") for name in ("graphs-false", "graphs-true", "llama3.2-1b", "smollm2-135m")])
        for run in report["training"]:
            self.assertGreaterEqual(run["steps"], 8)
            self.assertGreater(run["mfu"], 0)
            self.assertLess(run["loss_last"], run["loss_first"])

    def test_without_time_everything_is_recorded_as_skipped(self):
        code, stderr, report = self.run_script("--build", os.environ["BUILD"], "--tests", "^sums_test.cuda$", "--minutes", "0")
        self.assertEqual(code, 0, stderr)
        self.assertEqual({part["state"] for part in report["parts"]}, {"skipped: no time was left"})
        self.assertEqual((report["tests"], report["benchmarks"], report["training"]), ([], [], []))

    def expect_missing(self, sentence, *options, **changes):
        code, stderr, report = self.run_script(*options, **changes)
        self.assertEqual(code, 71, stderr)
        self.assertIn(sentence, stderr.splitlines()[-1])
        self.assertIsNone(report)

    def test_says_that_there_is_no_driver(self):
        self.expect_missing("there is no NVIDIA driver here", without=["nvidia-smi"])

    def test_says_that_the_driver_does_not_answer(self):
        self.expect_missing("the NVIDIA driver does not answer: No devices were found", nvidia_smi="echo 'No devices were found' >&2; exit 6")

    def test_says_that_there_is_no_compiler(self):
        empty = str(self.folder / "build")
        self.expect_missing("there is no nvcc on PATH or in CUDAToolkit_ROOT, and", "--build", empty, without=["nvcc"], emulated=False)


if __name__ == "__main__":
    unittest.main()
