"""What the tests beside transformers share: a folder of their own, cartan in it, and models that load without a word."""

import logging
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

# Of Open MPI, as root and on any machine.
LAUNCH = [os.environ.get("MPIEXEC", "mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
LAUNCH += ["--mca", "mpi_yield_when_idle", "1"]


class Words(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def cartan(self, *words, ranks=0):
        launch = [*LAUNCH, "-n", str(ranks)] if ranks else []
        words = [*launch, os.environ["CARTAN"], *(str(word) for word in words)]
        done = subprocess.run(words, cwd=self.dir, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"{words}\n{done.stderr}")
        return done.stdout

    def logits_of_cartan(self, source, ids="ids.json"):
        self.cartan("eval", "--from", source, "--ids", ids, "--logits", "logits.safetensors")
        return load_file(self.dir / "logits.safetensors")["logits"]

    def load_quietly(self, folder):
        words = Words()
        transformers.utils.logging.disable_progress_bar()
        logger = logging.getLogger("transformers")
        logger.addHandler(words)
        try:
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
            )
        finally:
            logger.removeHandler(words)
        self.assertEqual(words.said, [])
        self.assertEqual({key: value for key, value in report.items() if value}, {})
        return model.eval()
