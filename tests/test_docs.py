"""The documentation stays true: its code runs, its outputs are real, its names are complete."""

import contextlib
import dataclasses
import io
import json
import re
import shlex
from pathlib import Path

import pytest
import torch

import codtdq
from codtdq.cli.main import build_parser, main
from codtdq.models import registry
from codtdq.planning import PRESETS, CodTdqConfig

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
README = ROOT / "README.md"
SOURCE = Path(codtdq.__file__).parent
NO_RUN, CHECKED = "<!-- no-run -->", "<!-- checked -->"
# a fenced block with the comment line before it, if there is one
BLOCK = re.compile(r"(?:^(<!-- [a-z-]+ -->)\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


@dataclasses.dataclass
class Block:
    mark: str | None
    language: str
    text: str
    line: int
    adjoins: bool  # nothing but blank lines between it and the block before


def blocks(page):
    content, end = page.read_text(), 0
    for match in BLOCK.finditer(content):
        adjoins = end > 0 and not content[end : match.start()].strip()
        line = content.count("\n", 0, match.start(3)) + 1
        yield Block(match[1], match[2], match[3], line, adjoins)
        end = match.end()


def page(name):
    return (ROOT / "docs" / name).read_text()


def source_text():
    return "\n".join(path.read_text() for path in sorted(SOURCE.rglob("*.py")))


def assert_shown(shown, real):
    """Every shown line occurs in the real output, in order; "..." stands for anything."""
    left = iter(real.splitlines())
    for line in shown.splitlines():
        if not line.strip() or line.strip() == "...":
            continue
        pattern = re.compile(re.escape(line.rstrip()).replace(r"\.\.\.", ".*"))
        found = any(pattern.fullmatch(candidate.rstrip()) for candidate in left)
        assert found, f"not in the output (or not in this order): {line!r}\n{real}"


@pytest.fixture
def sandbox(monkeypatch, tmp_path):
    """A folder to write to, a registry to add to, one thread, and torch's own random state."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield tmp_path
    torch.set_num_threads(threads)


def test_the_pages_are_there():
    assert {
        "method.md",
        "configuration.md",
        "models-and-data.md",
        "checkpoint-format.md",
        "cli.md",
    } <= {path.name for path in PAGES}


@pytest.mark.parametrize("path", [*PAGES, README], ids=lambda path: path.stem)
def test_code_runs_and_prints_what_the_page_shows(path, sandbox):
    namespace = {"__name__": "example"}
    printed = None
    for block in blocks(path):
        if block.language == "python":
            assert block.mark in (None, NO_RUN), block.mark
            printed = None
            if block.mark == NO_RUN:
                compile(block.text, path.name, "exec")
                continue
            out = io.StringIO()
            code = compile("\n" * (block.line - 1) + block.text, path.name, "exec")
            with contextlib.redirect_stdout(out):
                exec(code, namespace)
            printed = out.getvalue()
        elif block.language == "text" and block.adjoins:
            assert printed is not None, (
                f"{path.name}:{block.line}: output of a block that is not run"
            )
            assert_shown(block.text, printed)
            shown = [line for line in block.text.splitlines() if line.strip() != "..."]
            if len(shown) == len(block.text.splitlines()):  # nothing abridged: nothing may lack
                assert len(shown) == len(printed.splitlines()), printed


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_checked_commands_print_what_the_page_shows(path, sandbox, capsys):
    for block in blocks(path):
        if block.language != "console" or block.mark != CHECKED:
            continue
        for session in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, shown = session.replace("\\\n", " ").partition("\n")
            program, *argv = shlex.split(command)
            assert program == "codtdq"
            try:
                main(argv)
            except SystemExit:  # argparse
                pass
            out, err = capsys.readouterr()
            assert_shown(shown, out + err)


def test_commands_in_the_pages_parse():
    """Also those whose output is not checked: verbs and options exist."""
    seen = 0
    for path in PAGES:
        for block in blocks(path):
            if block.language != "console":
                continue
            for line in re.findall(r"^\$ (.+)", block.text.replace("\\\n", " "), re.MULTILINE):
                program, *argv = shlex.split(line)
                if program == "python":
                    argv = argv[1:]  # the file that registers a model
                if (
                    program not in ("codtdq", "python")
                    or "--version" in argv
                    or CHECKED == block.mark
                ):
                    continue
                build_parser().parse_args(argv)  # exits where something is unknown
                seen += 1
    assert seen


def test_commands_in_the_readme_parse():
    """Its blocks are for a shell: a command per line, with a comment behind some."""
    text = "\n".join(block.text for block in blocks(README) if block.language == "sh")
    lines = re.findall(r"^codtdq (.+)$", text, re.MULTILINE)
    for line in lines:
        if line != "--version":
            build_parser().parse_args(shlex.split(line, comments=True))
    assert len(lines) >= 8


def test_pages_name_tests_and_sources_that_exist():
    named = {
        (path.name, found)
        for path in [*PAGES, README, ROOT / "CONTRIBUTING.md"]
        for found in re.findall(r"`((?:tests|src/codtdq|benchmarks)/[\w./-]+)`", path.read_text())
    }
    new = {"tests/schemes/"}  # a folder that the first test of a new scheme opens
    assert len(named) >= 5
    assert not [entry for entry in named if entry[1] not in new and not (ROOT / entry[1]).exists()]


def test_cited_equations_are_explained():
    source, method = source_text(), page("method.md")
    names = set(re.findall(r"\bEq\. (\w+)", source))
    for several in re.findall(r"\bEqs\. (\w+(?:, \w+)*)", source):
        names |= set(several.split(", "))
    assert len(names) >= 8
    missing = {name for name in names if f"Eq. {name}" not in method}
    cited = set(re.findall(r"\bS\d\.\d+\b|\bLemma \d|\bProposition \d|\bAlgorithm S\d", source))
    missing |= {name for name in cited if name not in method}
    assert not missing


def test_every_field_stands_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", page("configuration.md"), re.MULTILINE))
    defaults = CodTdqConfig().to_dict()
    assert set(defaults) <= set(rows)
    for name, value in defaults.items():
        if name == "act_modes":
            assert set(value.values()) == {"per_token_group"} and "per_token_group" in rows[name]
        else:
            assert json.loads(rows[name].strip("`")) == value, name


def test_every_switch_of_an_ingredient_changes_the_config():
    default = codtdq.config("cod-tdq-plus")
    table = page("cod-tdq-plus.md").split("| switch that takes it out |")[1].split("\n\n")[0]
    switches = re.findall(r"`(\w+)=([^`]+)`", table)
    assert len(switches) >= 10
    for field, value in switches:
        assert default.replace(**{field: json.loads(value)}) != default, field


def test_every_preset_stands_with_its_numbers():
    rows = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", page("configuration.md"), re.MULTILINE)
    table = {name: [cell.strip() for cell in rest.split("|")] for name, rest in rows}
    for name, preset in PRESETS.items():
        config = CodTdqConfig(name=name, **preset.fields)
        weights, activations, bounds, calibration = table[name]
        assert weights == _bits(config.weight_bits), name
        assert activations.startswith(_bits(config.act_bits)), name
        grouped = dict(config.act_modes)["linear"] == "per_token_group"
        assert ("token groups" in activations) == (grouped and config.act_bits is not None), name
        assert ("C1" in bounds, "C2" in bounds) == (
            config.tau is not None,
            config.zero_ratio is not None,
        )
        assert calibration == ("yes" if config.needs_calibration else "no"), name


def _bits(bits):
    return "float" if bits is None else f"{bits} bits"


def test_every_verb_and_model_and_data_set_is_described():
    actions = build_parser()._subparsers._group_actions
    verbs = [verb for action in actions for verb in action.choices]
    assert len(verbs) >= 9
    cli, models = page("cli.md"), page("models-and-data.md")
    assert not [verb for verb in verbs if f"codtdq {verb}" not in cli]
    shipped = [
        name
        for name, (_, build) in registry._MODELS.items()
        if build.__module__.startswith("codtdq.")
    ]
    assert shipped and not [name for name in shipped if f"`{name}`" not in models]
    from codtdq.data import list_datasets

    assert not [row.name for row in list_datasets() if f"`{row.name}`" not in models]


def test_the_table_of_models_says_what_they_declare():
    rows = re.findall(
        r"^\| `([\w-]+)` \| .+ \| [\d.]+ M \| (\d+) \| `([\w-]+)` \| (.+) \|$",
        page("models-and-data.md"),
        re.MULTILINE,
    )
    assert len(rows) >= 10
    for name, size, postprocess, ranges in rows:
        info = registry._MODELS[name][0]
        assert (str(info.input_size), info.postprocess) == (size, postprocess), name
        modes = {info.act_modes.get(kind, "per_token_group") for kind in ("conv", "depthwise")}
        if ranges.startswith("as "):
            assert info.act_modes == registry._MODELS[ranges[3:].strip("`")][0].act_modes
        else:
            shown = "per_token_group" if ranges == "token groups" else ranges.replace(" ", "_")
            assert modes == {shown}, name


@pytest.mark.parametrize(
    "path", [*PAGES, README, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.stem
)
def test_relative_links_resolve(path):
    text = BLOCK.sub("", path.read_text())
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        goal = (path.parent / file).resolve() if file else path
        assert goal.exists(), f"{path.name}: {target}"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", goal.read_text()), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}
            assert anchor in slugs, f"{path.name}: {target}"
