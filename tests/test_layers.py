"""The tree of ARCHITECTURE.md: imports go one way and in no circle, names mean one thing, files stay readable, and
importing the library costs nothing."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from idc.systems import SYSTEMS

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "ray", "mlflow", "transformers", "deepspeed", "diffusers", "peft")
CODE = ("idc", "cluster", "jobs", "serve", "benchmarks")

FORBIDDEN = {
    "idc": ("cluster", "jobs", "serve", "benchmarks", "tests", "ray", "mlflow"),
    "idc/config.py": HEAVY,
    "idc/util": (*HEAVY, "idc.data"),
    "idc/endpoint": HEAVY,
    "idc/data": (*HEAVY, "idc.rendered", "idc.mining", "idc.changeimti"),
    "idc/rendered": HEAVY,
    "idc/mining": HEAVY,
    "idc/changeimti": HEAVY,
    "idc/robustness": HEAVY,
    "idc/metrics": HEAVY,
    "idc/evaluation": HEAVY,
    "idc/report": HEAVY,
    "idc/sweep": HEAVY,
    "idc/geo": (*HEAVY, *(f"idc.systems.{name}" for name in SYSTEMS)),
    "idc/captioning": tuple(f"idc.systems.{name}" for name in SYSTEMS),
    "idc/captioning/contract.py": HEAVY,
    "idc/captioning/calibration.py": HEAVY,
    "idc/captioning/calibration_job.py": HEAVY,
    "idc/vision": ("idc.systems",),
    "idc/nn": ("idc.systems",),
    "idc/vlm": ("idc.systems",),
    "idc/vlm/config.py": HEAVY,
    "idc/training": ("idc.systems",),
    "cluster": ("jobs", "serve", "benchmarks", "tests", *(f"idc.systems.{name}" for name in SYSTEMS)),
    "jobs": ("serve", "benchmarks", "tests"),
    "serve": ("cluster", "jobs", "benchmarks", "tests"),
    "benchmarks": ("tests",),
    **{f"idc/systems/{name}": tuple(f"idc.systems.{other}" for other in SYSTEMS if other != name) for name in SYSTEMS},
}
"""Folder or file: what it may not import, at the top or inside a function."""

USES_MLFLOW = "idc/captioning/sources.py"
"""The module that resolves sources in a registry; importing it does not import MLflow."""
RAY_ALLOWED = ("cluster/", "benchmarks/", "serve/app.py", "serve/deployment/", "tests/")
FILES_OF_A_SYSTEM = {"README.md", "config.py", "captioner.py"}
FILES_OF_A_TRAINING = {"task.py"}
"""Of a system that is trained; one with a network of its own has it in model.py."""
MAX_LINES = 450


@functools.cache
def python_files(*folders: str) -> list[Path]:
    """Files that git tracks, or would, below the folders of the checkout (all of it by default)."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]
    return [path for path in paths if not folders or path.relative_to(ROOT).parts[0] in folders]


LOADS = r"\b(import_module|resolve_name|__import__)$"
"""The functions that load a module by its name."""
COMPUTED = {
    "idc/systems/__init__.py": {"idc.systems.*.captioner", "idc.systems.*.config"},
    "idc/sweep/config.py": {"idc.systems.*.sweep"},
    "idc/demo/run.py": {"idc.systems.*.demo"},
    "idc/training/artifact.py": {"safetensors.*"},
    "cluster/train.py": {"*"}, "cluster/training_command.py": {"*"}, "cluster/trials.py": {"*"},
    "jobs/convert.py": {"*"}, "idc/util/command_forms.py": {"*"},
    "idc/rewards/config.py": {"*"}, "idc/rewards/rewards.py": {"*"},
}  # fmt: skip
"""File -> computed names that it loads: systems of the list, entries ("module:function"), settings of a command's
forms, and rewards of the user's own."""


@functools.cache
def loaded_by_name(path: Path) -> set[str]:
    """Dotted names that a file loads by ``import_module``, ``resolve_name`` or ``__import__``; * is a computed part."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Call) and re.search(LOADS, ast.unparse(node.func)):
            parts = node.args[0].values if isinstance(node.args[0], ast.JoinedStr) else node.args[:1]
            names.add("".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts))
    return names


def test_only_systems_and_entries_are_loaded_by_a_computed_name() -> None:
    computed = {
        str(path.relative_to(ROOT)): {name for name in loaded_by_name(path) if "*" in name}
        for path in python_files(*CODE)
    }
    assert {name: loaded for name, loaded in computed.items() if loaded} == COMPUTED


@functools.cache
def modules_of(path: Path, types: bool = True) -> set[str]:
    """Dotted names a file imports, anywhere in it, also inside functions and by name (a computed part stands for every
    module that it fits); with ``types`` those of TYPE_CHECKING too."""
    modules = {name for name in loaded_by_name(path) if "*" not in name}
    for name in loaded_by_name(path) - modules - {"*"}:
        pattern = re.escape(name).replace(r"\*", r"\w+")
        modules |= {module for module in map(name_of, python_files(*CODE)) if re.fullmatch(pattern, module)}
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    if not types:
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer; write the full name"
            modules.add(node.module or "")
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def name_of(path: Path) -> str:
    """``idc.data.readers`` for ``idc/data/readers/__init__.py``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_a_layer_imports_nothing_above_it(layer: str) -> None:
    start = ROOT / layer
    files = [path for path in python_files() if path == start or start in path.parents]
    assert files, f"{layer} has no files: is the table of this test out of date?"
    for path in files:
        for module in modules_of(path):
            if str(path.relative_to(ROOT)) == USES_MLFLOW and is_within(module, "mlflow"):
                continue
            wrong = [name for name in FORBIDDEN[layer] if is_within(module, name)]
            assert not wrong, f"{path.relative_to(ROOT)} imports {module}; {layer} may not import {wrong[0]}"


def test_only_the_cluster_layer_its_benchmarks_and_the_serve_deployment_import_ray() -> None:
    for path in python_files():
        name = str(path.relative_to(ROOT))
        if not name.startswith(RAY_ALLOWED):
            ray = [module for module in modules_of(path) if is_within(module, "ray")]
            assert not ray, f"{name} imports {ray[0]}; only {', '.join(RAY_ALLOWED)} may"


def test_no_class_of_transformers_runs_code_of_a_model() -> None:
    """Every `from_pretrained` is called with ``trust_remote_code=False``: unset, transformers asks on standard input.
    PEFT's config has no such setting and loads no code."""
    doors = 0
    for path in python_files(*CODE):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        closed = {
            call.func
            for call in ast.walk(tree)
            if isinstance(call, ast.Call)
            and any(
                word.arg == "trust_remote_code" and isinstance(word.value, ast.Constant) and word.value.value is False
                for word in call.keywords
            )
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "from_pretrained":
                doors += 1
                assert node in closed or ast.unparse(node.value) == "PeftConfig", f"{path}:{node.lineno}"
    assert doors >= 6


PRIVATE = {
    "ray": {"serve/deployment/ray_internals.py", "cluster/ray_internals.py", "cluster/launch/wait_for_nodes.py"},
    "torch": set(),
    "uvicorn": {"serve/listener.py"},
}  # fmt: skip
"""Library -> modules that use its private interfaces: a package whose name begins with "_", such a name of its own,
and all of uvicorn's protocol. The launcher's script runs alone, on a head node."""


def private_uses(path: Path) -> set[str]:
    """Libraries whose private interfaces a file uses."""
    uses = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            names = [ast.unparse(node.args[0]).strip("'")]
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"torch(\.\w+)+", ast.unparse(node)):
            names = [ast.unparse(node)]
        else:
            continue
        for name in names:
            library, *parts = name.split(".")
            private = any(part.startswith("_") and not part.endswith("__") for part in parts)
            if library in PRIVATE and (private or (library == "uvicorn" and "protocols" in parts)):
                uses.add(library)
    return uses


def test_private_interfaces_of_a_library_are_in_its_modules() -> None:
    found: dict[str, set[str]] = {library: set() for library in PRIVATE}
    for path in python_files(*CODE):
        for library in private_uses(path):
            found[library].add(str(path.relative_to(ROOT)))
    assert found == PRIVATE


def circle(imports: dict[str, set[str]]) -> list[str]:
    """One of the circles, if there are any."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """``idc/__init__.py`` is left out: every module loads it first, and it imports others only when one of its names is
    used (:func:`test_importing_loads_no_heavy_library_and_makes_nothing`)."""
    paths = {name_of(path): path for path in python_files(*CODE) if path != ROOT / "idc" / "__init__.py"}
    imports = {name: modules_of(path) & paths.keys() - {name} for name, path in paths.items()}
    assert circle(imports) == []


UP = {("idc.captioning", "idc.systems"), ("idc.sweep", "idc.systems"), ("idc.demo", "idc.systems")}
"""Packages that load the systems, which use them."""


def package_of(path: Path) -> str:
    """``idc.data`` for a file below it; a module next to the packages for itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:2]) if parts[0] == "idc" else parts[0]


def test_no_packages_import_each_other_in_a_circle() -> None:
    """But for the arrows :data:`UP`, each of which closes one."""
    paths = {name_of(path): path for path in python_files(*CODE) if path != ROOT / "idc" / "__init__.py"}
    imports: dict[str, set[str]] = {package_of(path): set() for path in paths.values()}
    for path in paths.values():
        imports[package_of(path)] |= {package_of(paths[name]) for name in modules_of(path, types=False) & paths.keys()}
    down = {
        package: {other for other in others if other != package and (package, other) not in UP}
        for package, others in imports.items()
    }
    assert circle(down) == []
    for package, other in UP:
        assert circle({**down, package: {*down[package], other}}), f"{package} -> {other} runs down"


UNCLEAR = {
    "found", "one", "own", "place", "places", "known", "given", "made", "some", "told", "heap", "couple", "couples"
}  # fmt: skip
"""Names that say nothing of what they hold."""


SAME_EVERYWHERE = {
    "Model", "main", "Job", "read", "train", "steps", "load", "build", "collate", "load_captioner", "is_captioner",
    "load_remote",
}  # fmt: skip
"""Public names that every command, reader, training, sweep or system has, with one meaning in all of them; ``Model`` as
OpenAI's API document and Serve's deployments name it."""


def test_a_public_name_has_one_meaning() -> None:
    """Functions and classes of modules; systems, which import nothing of each other, may share names among them."""
    defined: dict[str, set[str]] = defaultdict(set)
    for path in python_files(*CODE):
        parts = path.relative_to(ROOT).parts
        owner = "idc/systems/..." if parts[:2] == ("idc", "systems") and len(parts) > 3 else "/".join(parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith(
                "_"
            ):
                defined[node.name].add(owner)
    shared = {name: sorted(owners) for name, owners in defined.items() if len(owners) > 1}
    assert {name: owners for name, owners in shared.items() if name not in SAME_EVERYWHERE} == {}


def test_variables_are_named_by_what_they_hold() -> None:
    for path in python_files(*CODE):
        name = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        fields = {id(node.target) for of in ast.walk(tree) if isinstance(of, ast.ClassDef)
                  for node in of.body if isinstance(node, ast.AnnAssign)}  # fmt: skip
        variables = [(node.arg, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.arg)]
        variables += [
            (node.id, node.lineno) for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields
        ]  # fmt: skip
        unclear = [(word, line) for word, line in variables if word in UNCLEAR]
        assert not unclear, f"{name}: {unclear}: take the noun of what it holds"


def test_a_long_file_says_why() -> None:
    """At most :data:`MAX_LINES` lines, unless the module's docstring has a line "Long because ..."."""
    for path in python_files():
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > MAX_LINES:
            reason = ast.get_docstring(ast.parse(text)) or ""
            assert "Long because" in reason, f"{path.relative_to(ROOT)} has {text.count(chr(10))} lines and no reason"


def test_every_system_folder_is_listed_and_has_the_same_files() -> None:
    systems = ROOT / "idc" / "systems"
    folders = {path.name for path in systems.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(SYSTEMS)
    for name in SYSTEMS:
        found = {path.name for path in (systems / name).iterdir()}
        assert found >= FILES_OF_A_SYSTEM
        trained = found & {*FILES_OF_A_TRAINING, "model.py", "sweep.py"}
        assert not trained or trained >= FILES_OF_A_TRAINING, f"{name} has {', '.join(sorted(trained))} alone"


LIGHT = (
    "idc/__init__.py", "idc/api.py", "idc/config.py", "idc/data/", "idc/rendered/", "idc/mining/", "idc/changeimti/",
    "idc/robustness/", "idc/endpoint/", "idc/util/", "idc/metrics/", "idc/evaluation/", "idc/report/", "idc/sweep/",
    "idc/captioning/", "idc/systems/__init__.py", "serve/",
)  # fmt: skip
"""Importing these loads no heavy library; so do all ``config.py``."""


def test_importing_loads_no_heavy_library_and_makes_nothing(tmp_path: Path) -> None:
    """One process imports the modules one after another, and names those after which a heavy library is loaded."""
    paths = [path for path in python_files(*CODE) if str(path.relative_to(ROOT)).startswith(LIGHT)]
    paths = [path for path in paths if "deployment" not in path.parts]  # Ray's own part of serve
    configs = [path for path in python_files(*CODE) if path.stem in ("config", "sweep")]
    names = sorted({name_of(path) for path in paths + configs})
    assert len(names) > 80
    code = (
        f"import importlib, sys\nfor name in {names!r}:\n    importlib.import_module(name)\n"
        f"    loaded = [heavy for heavy in {(*HEAVY, 'jinja2')!r} if heavy in sys.modules]\n"
        "    if loaded:\n        sys.exit(f'importing {name} loads {loaded}')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert not list(tmp_path.iterdir()), "importing wrote files"
