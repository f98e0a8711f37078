"""Hardware profiles: every figure says where it is from, and files that do not fit are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.simulate.profiles import (
    HardwareError,
    assumptions,
    hardware_names,
    load_hardware,
)

GOOD = """
name = "A made-up board"
kind = "cpu"
memory = { value = 8e9, kind = "data sheet", source = "sheet" }
bandwidth = { value = 10e9, kind = "derived", source = "sheet", note = "32 bits at 2500 MT/s" }
flops = { f32 = { value = 1e11, kind = "assumption", note = "as its sister" } }

[sources.sheet]
url = "https://example.org/sheet"
looked_up = 2026-11-30
"""
PRICE = """[price]
currency = "{}"
hour = {{ value = 1.5, kind = "assumption", note = "ours" }}

[sources"""


@pytest.mark.parametrize("name", hardware_names())
def test_every_figure_of_every_profile_has_its_source(name: str) -> None:
    hardware = load_hardware(name)
    assert hardware.id == name
    for figure in hardware.figures().values():
        if figure.kind == "assumption":
            assert figure.note
        else:
            assert figure.source in hardware.sources
        assert figure.kind != "measured"  # nothing of what is shipped was measured by us
    used = {figure.source for figure in hardware.figures().values()}
    assert set(hardware.sources) <= used, "a source that nothing is taken from"


@pytest.mark.parametrize("name", hardware_names())
def test_figures_are_of_the_right_size(name: str) -> None:
    """A wrong unit or power of ten, or a rate with sparsity, stands out."""
    hardware = load_hardware(name)
    assert 1e9 < hardware.memory.value < 1e12
    assert 1e10 < hardware.bandwidth.value < 1e13
    rates = {precision: figure.value for precision, figure in hardware.flops.items()}
    assert 1e10 < rates["f32"] < 2e14
    ordered = [rates[p] for p in ("f32", "bf16", "fp8") if p in rates]
    assert ordered == sorted(ordered)
    # What is computed for each byte that is read: 5 to 600 on anything that exists.
    assert 1 < max(rates.values()) / hardware.bandwidth.value < 1400


def test_the_hardware_that_people_ask_for_is_there() -> None:
    assert {
        "h200", "h100-sxm", "h100-pcie", "a100-80gb", "l40s", "rtx-4090", "mi300x",
        "raspberry-pi-4", "raspberry-pi-5", "jetson-agx-orin", "epyc-9654", "xeon-8480",
        "desktop-avx2", "apple-m4-max", "cloud-vm-8",
    } <= set(hardware_names())  # fmt: skip


def test_what_is_assumed_says_why() -> None:
    for kind in (assumptions().gpu, assumptions().cpu):
        for name, figure in kind.figures().items():
            assert figure.kind != "data sheet", name  # of no one device
            assert figure.note, name
            if name.startswith("efficiency") or name == "usable_memory":
                assert figure.value <= 1


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD)
    hardware = load_hardware(str(file))
    assert hardware.id == "mine"
    assert hardware.rate(("int8", "f32")) == 1e11
    with pytest.raises(HardwareError, match="mine states no rate"):
        hardware.rate(("fp8",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("8e9", "-1.0"), "memory: -1.0 is not a number from 1e-18"),
        (("8e9", "inf"), "memory: inf is not a number from 1e-18"),
        (("8e9", "nan"), "memory: nan is not a number from 1e-18"),
        (("8e9", "1e300"), "memory: 1e+300 is not a number from 1e-18 to 1e+24"),
        (("8e9", "9" * 400), "number out of range"),
        (("8e9", "9" * 5000), "not valid TOML"),
        (('"derived"', '"guessed"'), "invalid enum value 'guessed'"),
        (('source = "sheet" }', 'source = "elsewhere" }'), "source 'elsewhere' is not among"),
        (('kind = "data sheet", source = "sheet"', 'kind = "data sheet"'), "names its source"),
        ((', note = "as its sister"', ""), "says why in its note"),
        ((', note = "32 bits at 2500 MT/s"', ""), "says why in its note"),
        (('name = "A made', 'colour = "red"\nname = "A made'), "unknown field `colour`"),
        (("https://", "http://"), "is no https:// URL"),
        (("2026-11-30", '"yesterday"'), "looked_up"),
        (("flops = { f32", "flops = { f33"), "f33"),
        (('kind = "cpu"', 'kind = "tpu"'), "tpu"),
        (('kind = "cpu"', 'kind = "cpu"\nid = "x"'), "id is the name of the file"),
        (("[sources", "[[sources"), "not valid TOML"),
        (("[sources", PRICE.format("")), "price.currency: '' is no name such as EUR"),
        (("[sources", PRICE.format(r"\u001b[2J")), r"price.currency: '\x1b[2J' is no name"),
    ],
)
def test_files_that_do_not_fit_are_refused_with_the_place(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    text = GOOD.replace(*change, 1)
    assert text != GOOD
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(HardwareError) as caught:
        load_hardware(str(file))
    assert message in str(caught.value)
    assert str(caught.value).startswith("mine.toml: ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h300", "no hardware is called 'h300'; there are a100-80gb"),
        ("nowhere/x.toml", "nowhere/x.toml: No such file"),
    ],
)
def test_what_is_not_there_is_told(name: str, message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        load_hardware(name)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b"#" * (2 << 20))
    with pytest.raises(HardwareError, match="larger than 1 MiB"):
        load_hardware(str(file))


def test_a_file_with_the_mark_that_some_editors_write(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_hardware(str(file)).id == "mine"
