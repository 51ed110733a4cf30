"""Builds the programs of a build folder with a switch at each place that can be taken away, and leaves the build folder
alone: the sources with switches are a copy, and their objects stand before the libraries on the linker's command line.
Nothing is compiled once more to try another place.
"""
import collections
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time

import checks
import sites

HERE = os.path.dirname(os.path.abspath(__file__))
COPIED = ("include", "kernels", "src", "tests")
OBJECTS = re.compile(r"^(src/|tests/emu/CMakeFiles/cartan_kernels_emu\.)")
OUTPUT = re.compile(r" -o (\S+)")

FINDING = re.compile(r"emu\[\d+\]: (.*)|the emulated GPU found what this test did not expect: (.*)")
FAILED_TEST = re.compile(r"\[  FAILED  \] ([^\s,]+)")

Verdict = collections.namedtuple("Verdict", "how detail")


class Workshop:
    def __init__(self, build, folder, places):
        self.build, self.folder = os.path.abspath(build), os.path.abspath(folder)
        cache = {}
        with open(os.path.join(self.build, "CMakeCache.txt"), encoding="utf-8") as file:
            for line in file:
                if found := re.match(r"([\w-]+):\w+=(.*)", line):
                    cache[found[1]] = found[2]
        self.root = cache["CMAKE_HOME_DIRECTORY"]
        self.compiler = f"{cache.get('CMAKE_CXX_COMPILER_LAUNCHER', '')} {cache['CMAKE_CXX_COMPILER']}"
        self.launcher = cache.get("CMAKE_CXX_COMPILER_LAUNCHER", "")
        self.mpiexec = cache.get("MPIEXEC_EXECUTABLE", "mpiexec")
        with open(os.path.join(self.build, "compile_commands.json"), encoding="utf-8") as file:
            self.commands = {OUTPUT.search(entry["command"])[1]: entry for entry in json.load(file)}
        self.copy = os.path.join(self.folder, "source")
        self._copy_with_switches(places)
        self.dependents = self._read_dependents()
        self.objects, self.programs = {}, {}

    def _copy_with_switches(self, places):
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in COPIED:
            shutil.copytree(os.path.join(self.root, name), os.path.join(self.copy, name))
        for name in {site.file for site in places}:
            path = os.path.join(self.copy, name)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(sites.with_switches(text, [site for site in places if site.file == name]))

    def _read_dependents(self):
        """The objects of rooms and emulated kernels that a file of the sources is compiled into."""
        dependents, target = collections.defaultdict(list), None
        for line in self._ninja("-t", "deps").splitlines():
            if line.startswith("    "):
                path = os.path.normpath(os.path.join(self.build, line.strip()))
                if target is not None and path.startswith(self.root + "/"):
                    dependents[os.path.relpath(path, self.root)].append(target)
            else:
                name = line.partition(": #deps")[0]
                target = name if OBJECTS.match(name) and name in self.commands else None
        return dependents

    def _ninja(self, *arguments):
        return subprocess.run(["ninja", *arguments], cwd=self.build, check=True, capture_output=True, text=True).stdout

    def _in_copy(self, text):
        return re.sub(re.escape(self.root) + f"/({'|'.join(COPIED)})(?=[/ \"]|$)", self.copy + r"/\1", text, flags=re.M)

    def prepare(self, files):
        """Compiles what these files are compiled into."""
        self._compile(f"{self.compiler} -O2 -c {shlex.quote(os.path.join(HERE, 'is_away.cpp'))}", "is_away.o")
        for name in sorted({name for file in files for name in self._objects_of(file)}):
            entry = self.commands[name]
            command = f"{self.launcher} {self._in_copy(OUTPUT.sub('', entry['command']))}"
            if name.startswith("src/"):
                command += " -O0"  # kernels are what takes time to run
            source = entry["file"]
            if not source.startswith(self.root + "/") or source.startswith(self.build + "/"):  # made by CMake
                with open(source, encoding="utf-8") as file:
                    text = self._in_copy(file.read())
                made = os.path.join(self.folder, os.path.basename(source))
                with open(made, "w", encoding="utf-8") as file:
                    file.write(text)
                command = command.replace(source, made)
            self._compile(command, name)

    def _objects_of(self, file):
        if not self.dependents[file]:
            raise LookupError(f"{file} is in no object of {self.build}: build it first")
        return self.dependents[file]

    def _compile(self, command, name):
        output = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(output), exist_ok=True)
        subprocess.run(f"{command} -w -o {shlex.quote(output)}", shell=True, cwd=self.build, check=True)
        self.objects[name] = output

    def link(self, program):
        """The program with switches."""
        if program not in self.programs:
            command = self._ninja("-t", "commands", "-s", program).strip()
            output = os.path.join(self.folder, program)
            os.makedirs(os.path.dirname(output), exist_ok=True)
            front = [path for name, path in self.objects.items() if library_of(name) in command.split()]
            front.append(self.objects["is_away.o"])
            command = OUTPUT.sub(lambda _: f" {' '.join(map(shlex.quote, front))} -o {shlex.quote(output)}", command,
                                 count=1)
            subprocess.run(command, shell=True, cwd=self.build, check=True)
            self.programs[program] = output
        return self.programs[program]

    def run(self, check, timeout_s, away=0):
        """What the check notices without the place of this id: None if nothing."""
        command = [self.link(check.program)]
        if check.only:
            command.append(f"--gtest_filter={check.only}")
        if check.ranks:
            command = [self.mpiexec, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca",
                       "mpi_yield_when_idle", "1", "-n", str(check.ranks)] + command
        environment = {**os.environ, **checks.CUDA, **dict(check.settings), "MUTATION_AWAY": str(away)}
        log = os.path.join(self.folder, "log")
        end = time.monotonic() + timeout_s
        with open(log, "w", encoding="utf-8") as out:
            running = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=out, stderr=out,
                                       start_new_session=True)
        code = None
        while code is None and time.monotonic() < end:
            try:
                code = running.wait(0.3)
            except subprocess.TimeoutExpired:
                if not check.expects_findings and _finding_in(log):
                    break
        if code is None:
            os.killpg(running.pid, signal.SIGTERM)  # mpirun ends its ranks
            try:
                running.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
        if code == 0:
            return None
        if not check.expects_findings and (finding := _finding_in(log)):
            return Verdict("finding", finding)
        with open(log, encoding="utf-8", errors="replace") as file:
            failed = FAILED_TEST.search(file.read())
        if code is None:
            return Verdict("time-out", f"no end within {timeout_s:.0f} s")
        if failed:
            return Verdict("test", failed[1])
        return Verdict("crash", f"exit code {code}")


def library_of(name):
    """The archive of an object: src/ROOM/CMakeFiles/cartan_ROOM.dir/..."""
    folder, _, rest = name.partition("/CMakeFiles/")
    target = rest.partition(".dir/")[0]
    return f"{folder}/lib{'cartan_emu' if target == 'cartan_kernels_emu' else target}.a"


def _finding_in(log):
    with open(log, encoding="utf-8", errors="replace") as file:
        found = FINDING.search(file.read())
    return (found[1] or found[2]) if found else ""
