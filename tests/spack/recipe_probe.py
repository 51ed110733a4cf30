#!/usr/bin/env python3
"""Reads a spack CMake recipe where there is no spack, and compares it with the project's CMake files.

    recipe_probe.py PACKAGE_PY CMAKE_FILE...

It is no substitute for spack: it does not solve anything. It stands in for the few names that a
CMake and CUDA recipe imports, records the directives, evaluates cmake_args() for each on/off
combination of the recipe's own variants, and reports

  * a -D that names no option() of the CMake files, or an option() that the recipe never sets
  * a find_package(), pkg_check_modules() or cartan_find_library() without a depends_on()
  * a recipe without license, maintainers, version, docstring or test_* method
"""

import contextlib
import importlib.util
import itertools
import re
import sys
import types

# find_package() name -> what a recipe calls it, None for what comes with the compiler
PROVIDES = {
    "Threads": None,
    "hwy": "highway",
    "MPI": "mpi",
    "HDF5": "hdf5",
    "Boost": "boost",
    "GTest": "googletest",
    "CUDAToolkit": "cuda",
    "PkgConfig": "pkgconfig",
    "nlohmann_json": "nlohmann-json",
    "Arrow": "arrow",
    "Parquet": "arrow",
    "parquet": "arrow",
}
RECORD = {}


def recorder(name):
    def directive(*args, **kwargs):
        RECORD.setdefault(name, []).append((args, kwargs))

    return directive


class When(contextlib.ContextDecorator):
    """Both `with when("+x"):` and `@when("+x")`."""

    def __init__(self, *_args, **_kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        return False


def decorator(*_args, **_kwargs):
    return lambda function: function


class Spec:
    def __init__(self, on, archs):
        self.on = on
        self.variants = {"cuda_arch": types.SimpleNamespace(value=archs)}

    def satisfies(self, text):
        m = re.fullmatch(r"([+~])(\w+)", text)
        if not m:
            raise NotImplementedError(f"the probe cannot judge {text!r}")
        return (m[2] in self.on) == (m[1] == "+")


def define(name, value):
    if isinstance(value, bool):
        return f"-D{name}:BOOL={'ON' if value else 'OFF'}"
    return f"-D{name}:STRING={value if isinstance(value, str) else ';'.join(value)}"


class CMakePackage:
    run_tests = False

    @staticmethod
    def define(name, value):
        return define(name, value)

    def define_from_variant(self, name, variant=None):
        return define(name, (variant or name.lower()) in self.spec.on)


class CMakeBuilder:
    @staticmethod
    def define_cuda_architectures(package):
        return define("CMAKE_CUDA_ARCHITECTURES", package.spec.variants["cuda_arch"].value)


class CudaPackage:
    cuda_arch_values = ("70", "80", "90", "100", "120")


def fake(name, **names):
    module = types.ModuleType(name)
    module.__dict__.update(names)
    sys.modules[name] = module


def load(path):
    words = "maintainers license version variant depends_on conflicts requires provides patch"
    names = {w: recorder(w) for w in words.split()}
    names.update(when=When, default_args=When, run_after=decorator, run_before=decorator)
    names.update(on_package_attributes=decorator, which=None, Executable=None, SkipTest=Exception)
    names.update(check_outputs=None, any_combination_of=lambda *v: v)
    fake("spack")
    fake("spack.package", **names)
    for part in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        fake(part)
    systems = "spack_repo.builtin.build_systems."
    fake(systems + "cmake", CMakePackage=CMakePackage, CMakeBuilder=CMakeBuilder, generator=When)
    fake(systems + "cuda", CudaPackage=CudaPackage)
    spec = importlib.util.spec_from_file_location("recipe", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (found,) = [
        c
        for c in vars(module).values()
        if isinstance(c, type) and issubclass(c, CMakePackage) and c.__module__ == "recipe"
    ]
    return found


def main(recipe, *cmake_files):
    cls = load(recipe)
    text = ""
    for name in cmake_files:
        with open(name, encoding="utf-8") as f:
            text += re.sub(r"#.*", "", f.read())
    faults = []
    for word in ("maintainers", "license", "version"):
        if word not in RECORD:
            faults.append(f"no {word}() directive")
    if not cls.__doc__:
        faults.append("no docstring")
    if not any(n.startswith("test_") for n in vars(cls)):
        faults.append("no test_* method")

    options = set(re.findall(r"\boption\s*\(\s*(\w+)", text))
    variants = [a[0] for a, _ in RECORD.get("variant", [])]
    if issubclass(cls, CudaPackage):
        variants.append("cuda")
    seen = set()
    for flags in itertools.product((False, True), repeat=len(variants)):
        on = {v for v, flag in zip(variants, flags) if flag}
        package = cls()
        package.spec = Spec(on, ("80", "90"))
        args = package.cmake_args()
        print(" ".join(f"{'+' if v in on else '~'}{v}" for v in variants), "->", " ".join(args))
        seen |= {re.match(r"-D(\w+)", a)[1] for a in args}
    own = {n for n in seen if not n.startswith("CMAKE_")}
    faults += [f"the recipe sets {n}, which is no option() of the project" for n in own - options]
    faults += [f"the recipe never sets the project's option {n}" for n in options - own]

    needed = {re.match(r"[\w-]+", a[0])[0] for a, _ in RECORD.get("depends_on", [])}
    finders = r"\b(?:find_package|pkg_check_modules|cartan_find_library)\s*\(\s*([\w-]+)"
    for name in sorted(set(re.findall(finders, text)) - {"target"}):
        package = PROVIDES.get(name, name)
        if package is not None and package not in needed:
            faults.append(
                f"the project looks for {name}, but the recipe has no depends_on({package!r})"
            )
    for fault in sorted(faults):
        print("fault:", fault)
    print(f"{len(seen)} definitions, {len(needed)} dependencies, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
