"""What works on a login node: no MPI_Init, no launcher, no accelerator."""

import re

import harness
from harness import DONE

COMMANDS = ("train", "eval", "generate", "tokenize", "inspect", "config", "plan", "verify")

# With these MPI cannot start: there is no such transport, and the helper programs of Open MPI are not found.
WITHOUT_MPI = {
    "OMPI_MCA_btl": "nonsense",
    "OMPI_MCA_pml": "nonsense",
    "OPAL_PREFIX": "/nonexistent",
    "PATH": "/nonexistent",
}


class LoginNode(harness.Case):
    def test_mpi_cannot_start_in_the_environment_of_these_tests(self):
        result = self.start_train("run", env=WITHOUT_MPI).finish()
        self.assertNotEqual(result.code, DONE, result)
        self.assertFalse((self.dir / "run").exists())

    def test_help_and_version(self):
        version = self.cartan("--version", env=WITHOUT_MPI).out
        for line in (
            r"cartan +\d+\.\d+\.\d+",
            r"compiler +\S",
            r"MPI +\S",
            r"HDF5 +\d\S*, parallel: yes",
            r"oneDNN +\d",
            r"CUDA +(\d+\.\d+, NCCL \d+\.\d+\.\d+|no \(run\.device = cpu only\))$",
        ):
            self.assertRegex(version, re.compile(f"^{line}", re.MULTILINE))
        overview = self.cartan("--help", env=WITHOUT_MPI).out
        self.assertEqual(self.cartan("help", env=WITHOUT_MPI).out, overview)
        for name in COMMANDS:
            self.assertRegex(overview, rf"\n  {name} +\S")
            text = self.cartan(name, "--help", env=WITHOUT_MPI).out
            self.assertEqual(self.cartan("help", name, env=WITHOUT_MPI).out, text)
            self.assertIn(f"usage: cartan {name}", text)
            self.assertGreaterEqual(text.count(f"cartan {name} "), 3)  # usage and two examples
            self.assertRegex(text, r"exit codes:\n  0 +done\n  64 ")

    def test_help_is_asked_for_beside_other_words(self):
        text = self.cartan("train", "--steps", 5, "--help", env=WITHOUT_MPI).out
        self.assertEqual(text, self.cartan("train", "--help").out)

    def test_config_and_inspect(self):
        self.train("run", {"run.steps": 1})
        self.cartan(
            "config",
            "--config",
            "run/config.ini",
            "--ranks",
            4096,
            "--dp",
            0,
            "--batch.global",
            4096,
            "--batch.micro",
            1,
            env=WITHOUT_MPI,
        )
        self.assertEqual(self.inspect("run", "--verify"), self.inspect("run", "--verify"))
        self.cartan("inspect", "run", harness.corpus(), "--verify", env=WITHOUT_MPI)

    def test_plan(self):
        words = ("plan", "--bubble", "--pp", 4, "--batch.global", 8, "--batch.micro", 1)
        text = self.cartan(*words, env=WITHOUT_MPI).out
        shares = dict(re.findall(r"^[ *] (\S+) +\d+ +(\S+) %", text, re.MULTILINE))
        self.assertEqual(
            shares, {"gpipe": "27.3", "1f1b": "27.3", "interleaved": "15.8", "zero-bubble": "11.1"}, text
        )

    def test_tokenize_and_generate(self):
        self.train("run", {"run.steps": 1})
        (self.dir / "in.txt").write_text("text")
        self.cartan("tokenize", "--input", "in.txt", "--output", "out", env=WITHOUT_MPI)
        self.cartan("generate", "--from", "run", "--prompt", "a", "--max-new-tokens", 2, env=WITHOUT_MPI)


if __name__ == "__main__":
    harness.main()
