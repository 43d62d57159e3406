# SPDX-License-Identifier: Apache-2.0
"""Input files in TOML and in TENET's formats, and the errors for wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.accelerator import inputs
from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import load_hardware
from costmodel.accelerator.scheme import schemes
from costmodel.accelerator.settings import HARDWARE, LIBRARY, shipped_names
from costmodel.accelerator.tenet import read_experiment, run_experiment
from costmodel.counting.affine import Affine, Floor, Mod, constant, floor_div, modulo, variable
from costmodel.counting.relations import Line, parse_domain, parse_relations
from costmodel.errors import CostError
from costmodel.estimate.gemm import cost
from costmodel.estimate.product import Gemm

TENET_FILES = {
    "array.p": "{PE[i,j]:0<=i<8 and 0<=j<8}\n"
    "{PE[i,j]->PE[i-1,j] ; PE[i,j]->PE[i,j-1]}\n256 1024 64 16\n",
    "gemm.s": "2 1\n{S[i,j,k]: 0<=i<256 and 0<=j<256 and 0<=k<256}\n"
    "{S[i,j,k]->A[i,k]}\n{S[i,j,k]->B[k,j]}\n{S[i,j,k]->C[i,j]}\n",
    "ws.m": "{S[i,j,k]->PE[k%8,j%8]}\n{S[i,j,k]->T[floor(j/8),floor(k/8),i+j%8+k%8]}\n",
    "os.m": "{S[i,j,k]->PE[i%8,j%8]}\n{S[i,j,k]->T[floor(i/8),floor(j/8),i%8+j%8+k]}\n",
    "flat.m": "{S[i,j,k]->PE[i%8,j%8]}\n{S[i,j,k]->T[floor(i/8),floor(j/8)]}\n",
    "stencil.s": "1 1\n{S[i,j]: 0<=i<16 and 0<=j<16}\n"
    "{S[i,j]->X[i,j];S[i,j]->X[i+1,j]; S[i,j]->X[i-1,j]}\n{S[i,j]->Y[i,j]}\n",
    "stencil.m": "{S[i,j]->PE[i%8,j%8]}\n{S[i,j]->T[floor(i/8),floor(j/8)]}\n",
}


@pytest.fixture
def tenet(tmp_path: Path) -> Path:
    for name, text in TENET_FILES.items():
        (tmp_path / name).write_text(text)
    folder = tmp_path / "experiment"
    folder.mkdir()
    for flow, statement in (("ws", "gemm"), ("os", "gemm"), ("flat", "gemm"), ("stencil",) * 2):
        (folder / flow).write_text(f"{flow}.m\narray.p\n{statement}.s\n")
    return tmp_path


def here(text: str) -> Line:
    return Line(text, "text")


def test_spellings_of_an_expression_are_one_expression() -> None:
    i, j = variable("i"), variable("j")
    wanted = floor_div(i, 8) + modulo(j, 4).scaled(2) - constant(1)
    for text in (
        "i/8+2*(j%4)-1",
        "floor(i/8) - 1 + (j mod 4)*2",
        "2*(j % 4) + floor((i)/8) - 1",
        "-1 + i//8 + 2*(j mod 4)",
    ):
        (relation,) = parse_relations(here(f"{{ S[i,j] -> T[{text}] }}"))
        assert relation.range.entries == (wanted,)
    assert wanted.evaluate({"i": 17, "j": 6}) == 2 + 4 - 1
    assert isinstance(dict(wanted.terms), dict)
    assert {type(a) for a, _ in wanted.terms} == {Floor, Mod}
    assert Affine((("i", 1),)) == i


def test_names_may_stand_for_numbers() -> None:
    (relation,) = parse_relations(here("S[i] -> PE[(i / V) % R]"), {"V": 2, "R": 8})
    assert relation.range.entries == (modulo(floor_div(variable("i"), 2), 8),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("S[i,j] -> PE[i*j]", "product of two variables"),
        ("S[i] -> PE[i % n]", "must be a positive number"),
        ("S[i] -> PE[i + q]", "unbound name q"),
        ("S[i] -> PE[i", "was never closed"),
        ("S[i] -> PE[i] extra", "invalid syntax"),
        ("S[i+1] -> PE[i]", "plain variables"),
        ("S[i,i] -> PE[i]", "twice"),
        ("S[i] -> PE[i $ 2]", "invalid syntax"),
        ("S[i]", "expected '->'"),
        ("{S[i] -> PE[i]", "a brace is missing"),
        (f"S[i] -> PE[{'(' * 5000}i{')' * 5000}]", "too many nested parentheses"),
        (f"S[i] -> PE[{'-' * 5000}i]", "too deep"),
        ("S[i] -> PE[True]", "expected an expression, found 'True'"),
        (f"S[i] -> PE[{'9' * 19}]", "more than 18 digits"),
    ],
)
def test_a_bad_relation_is_reported_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(CostError, match=problem) as caught:
        parse_relations(Line(text, "flow.toml", 7))
    assert "flow.toml:7" in str(caught.value)
    assert text in str(caught.value)


def test_an_unbound_dimension_is_refused() -> None:
    with pytest.raises(CostError, match="dimension k is unbound"):
        parse_domain(here("{S[i,k] : 0 <= i < 4 and 0 <= k}"))


@pytest.mark.parametrize("name", shipped_names(HARDWARE))
def test_shipped_hardware_is_sound(name: str) -> None:
    hardware = load_hardware(name)
    assert hardware.name == name
    assert hardware.levels[-1].size is None
    assert all(level.read > 0 and level.latency > 0 for level in hardware.levels)


def test_bandwidth_per_second_becomes_bits_a_cycle() -> None:
    assert load_hardware("systolic32x32").levels[-1].read == pytest.approx(409.6)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('clock = "1 GHz"', 'clock = "1"', "'clock' has no unit"),
        ('clock = "1 GHz"', 'clock = "0 GHz"', "'clock' must be positive"),
        ('"64 bit/cycle"', '"0 bit/cycle"', "a bandwidth must be at least 1e-06 bit/cycle"),
        ('latency = "16 cycles"', "latency = 16", "'latency' has no unit"),
        ('bandwidth = "64 bit/cycle"', 'bandwidth = "64 furlongs"', "has unit 'furlongs'"),
        ("shape = [8, 8]", "shape = [8, 0]", "1 to 3 positive integers"),
        ("macs_per_pe = 1", "macs_per_pe = 1\nspeed = 3", "unknown key 'speed'"),
        ('"PE[i,j] -> PE[i-1,j]"', '"PE[i,j] -> PE[2*i,j]"', "is not i plus a number"),
        ('"PE[i,j] -> PE[i-1,j]"', '"PE[i] -> PE[i-1]"', "2 dimensions"),
        ("schema = 1", "schema = 2", "only schema 1"),
        ('name = "buffer"', 'title = "buffer"', "unknown key 'title'"),
        ('name = "buffer"', 'name = "register"', "'register' is the name of another level or part"),
    ],
)
def test_bad_hardware_is_reported_with_its_line(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    text = (LIBRARY / "hardware" / "systolic8x8.toml").read_text()
    path = tmp_path / "bad.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(CostError, match=problem) as caught:
        load_hardware(str(path))
    number = int(str(caught.value).split(":")[1])
    wrong = next(n for n, line in enumerate(path.read_text().splitlines(), 1) if new[-9:] in line)
    assert number == wrong


def flow_file(folder: Path, space: str, time: str) -> str:
    path = folder / "flow.toml"
    path.write_text(f'schema = 1\nname = "flow"\nspace = "{space}"\ntime = "{time}"\n')
    return str(path)


def test_a_map_that_is_not_injective_is_refused_with_two_instances(tmp_path: Path) -> None:
    flow = load_dataflow(
        flow_file(tmp_path, "S[i,j,k] -> PE[i%8, j%8]", "S[i,j,k] -> T[i/8, j/8, i%8 + j%8]")
    )
    golden = load_hardware("systolic8x8")
    with pytest.raises(CostError, match=r"not injective: .* share a PE and a time stamp") as caught:
        cost(Gemm("g", 16, 16, 16), golden, flow)
    assert "flow.toml:3" in str(caught.value)
    assert "PE[i%8, j%8]" in str(caught.value)


def test_a_map_outside_the_array_is_refused(tmp_path: Path) -> None:
    flow = load_dataflow(flow_file(tmp_path, "S[i,j,k] -> PE[i, j%8]", "S[i,j,k] -> T[j/8, k]"))
    with pytest.raises(CostError, match="from 0 to 15, the array has 8"):
        cost(Gemm("g", 16, 16, 16), load_hardware("systolic8x8"), flow)


def test_a_large_map_without_closed_form_is_refused_and_a_small_one_is_counted(
    tmp_path: Path,
) -> None:
    space = "S[i,j,k] -> PE[(i+j)%8, j%8]"
    flow = load_dataflow(flow_file(tmp_path, space, "S[i,j,k] -> T[i/8, j/8, k]"))
    golden = load_hardware("systolic8x8")
    assert cost(Gemm("g", 16, 16, 16), golden, flow).stamps == 2 * 2 * 16
    late = load_dataflow(flow_file(tmp_path, space, "S[i,j,k] -> T[i/8, j/8, k/65537, k%65537]"))
    with pytest.raises(CostError, match="no closed form"):
        cost(Gemm("g", 64, 64, 1 << 20), golden, late)


def test_the_number_of_axes_must_agree() -> None:
    with pytest.raises(CostError, match="unbound: D"):
        cost(
            Gemm("g", 8, 8, 8), load_hardware("systolic8x8"), load_dataflow("output-stationary-3d")
        )


@pytest.mark.parametrize(
    ("flow", "delays"),
    [("ws", (540687, 524303, 262144, 540687)), ("os", (1048591, 16399, 262144, 1048591))],
)
def test_tenet_experiments_give_tenets_figures(
    tenet: Path, flow: str, delays: tuple[int, ...]
) -> None:
    found = run_experiment(read_experiment(tenet / "experiment" / flow))
    assert (found.in_delay, found.out_delay, found.compute_delay, found.delay) == delays
    assert found.volumes.occupancy.stamps == 276480
    assert found.average_active == 256**3 / 276480


def test_a_stencil_of_tenets_reads_several_elements(tenet: Path) -> None:
    found = run_experiment(read_experiment(tenet / "experiment" / "stencil"))
    assert found.volumes.total == {"X": 3 * 256, "Y": 256}
    assert found.volumes.unique["Y"] == 256
    assert found.volumes.unique["X"] == 4 * 8 * (8 + 2)


def test_constraints_that_leave_no_instance_are_refused(tenet: Path) -> None:
    statement = tenet / "gemm.s"
    statement.write_text(TENET_FILES["gemm.s"].replace("k<256}", "k<256 and i+j>=600}", 1))
    small = statement.read_text().replace("256", "16")
    statement.write_text(small)
    with pytest.raises(CostError, match="the constraints leave no instance") as caught:
        run_experiment(read_experiment(tenet / "experiment" / "os"))
    assert "os.m:1" in str(caught.value)


def test_tenet_maps_are_refused_when_not_injective(tenet: Path) -> None:
    with pytest.raises(CostError, match="not injective") as caught:
        run_experiment(read_experiment(tenet / "experiment" / "flat"))
    assert "flat.m:1" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("array.p", "{PE[i,j]:0<=i<8 and 0<=j<8}\n", "the file ends early"),
        (
            "array.p",
            "{PE[i]:0<=i<8}\n{PE[i]->PE[i-1]}\n256 1024 64\n",
            ":3: the line must list: L1 size",
        ),
        ("gemm.s", "2 x\n{S[i]:0<=i<8}\n", ":1: the line must list: number of reads"),
        ("gemm.s", "1 1\n{S[i]:0<=i<8}\n{S[j]->A[j]}\n{S[i]->B[i]}\n", "must start from S"),
    ],
)
def test_bad_tenet_files_are_reported(tenet: Path, name: str, text: str, problem: str) -> None:
    (tenet / name).write_text(text)
    with pytest.raises(CostError, match=problem):
        read_experiment(tenet / "experiment" / "os")


def test_tenet_files_serve_as_hardware_and_dataflow(tenet: Path) -> None:
    (hardware,) = inputs.hardware_by_names([str(tenet / "array.p")])
    (flow,) = inputs.dataflows_by_names([str(tenet / "os.m")], {})
    found = cost(Gemm("g", 64, 64, 64), hardware, flow)
    assert (found.stamps, found.delay) == (4992, 16399)


SCHEME = """schema = 1
name = "wide"
activation = "8 bit"
weight = "8 bit"
accumulator = "24 bit"
weight_grain = "group"
group = 32
zero_point = "4 bit"
"""


def test_a_scheme_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "wide.toml"
    path.write_text(SCHEME)
    (scheme,) = schemes([str(path)])
    assert (scheme.accumulator, scheme.output, scheme.group) == (24, 16, 32)
    flow = load_dataflow("weight-stationary")
    found = cost(Gemm("g", 16, 16, 64), load_hardware("systolic8x8"), flow, scheme)
    assert found.widths == {"A": 8, "B": 8, "C": 16, "scale_B": 16, "zero_B": 4}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("group = 32", "", "go together"),
        ('"group"', '"row"', "'weight_grain' is 'row'"),
        ('"24 bit"', '"24"', "'accumulator' has no unit"),
        ('"24 bit"', '"0 bit"', "at least 1 bit"),
    ],
)
def test_a_bad_scheme_is_reported(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(SCHEME.replace(old, new))
    with pytest.raises(CostError, match=problem):
        schemes([str(path)])
