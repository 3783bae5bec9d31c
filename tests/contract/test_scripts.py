"""`scripts/test`, which `make test` and `make soak` call: its tiers, their times, exit codes, and who runs them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.noise import BESIDE_OTHERS

THIS = Path(__file__).resolve()
SCRIPT = THIS.parents[2] / "scripts" / "test"
PROGRAMS = ("cargo", "pytest", "scripts/check")
FILES = (
    ("unit", "plain", ""),
    ("unit", "long", "pytestmark = pytest.mark.thorough\n"),
    ("lab", "counts", ""),
    ("lab", "times", "@pytest.mark.measures\n"),
    ("lab", "disturbed", "@pytest.mark.measures\n@pytest.mark.alone\n"),
)
"""Files of tests: folder, name and text."""


class Checkout:
    """A checkout whose programs only note their names and arguments; one of them may fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("scripts", "bin", "soak"):
            (folder / name).mkdir()
        for name in ("test", "as-root"):
            shutil.copy(SCRIPT.with_name(name), folder / "scripts" / name)
        for name in PROGRAMS:
            self.program(name if "/" in name else f"bin/{name}", "")
        (folder / "bin" / "id").write_text("#!/bin/bash\necho 0\n")
        (folder / "bin" / "id").chmod(0o755)
        for name in ("bash", "dirname", "env", "grep", "mktemp", "rm"):
            (folder / "bin" / name).symlink_to(shutil.which(name) or name)
        for kind in ("unit", "lab"):
            (folder / "tests" / kind).mkdir(parents=True)
        for kind, name, text in FILES:
            (folder / "tests" / kind / f"test_{name}.py").write_text(text)

    def program(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/bash\necho "{Path(name).name} $*" >> {self.folder}/calls\n{body}\n')
        path.chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        (self.folder / "calls").write_text("")
        done = subprocess.run(
            ["scripts/test", *arguments],
            cwd=self.folder,
            env={"PATH": str(self.folder / "bin"), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done, (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def names(calls: list[str]) -> list[str]:
    return [call.split()[0] for call in calls]


def test_tiers_run_in_order_with_their_times(checkout: Checkout) -> None:
    done, calls = checkout.run()
    assert done.returncode == 0
    compiled, calls = sorted(calls[:3]), calls[3:]  # side by side
    assert names(compiled) == ["cargo", "cargo", "pytest"]
    assert all("--no-run" in call for call in compiled[:2]) and "--collect-only" in compiled[2]
    assert names(calls) == ["check", "cargo", "cargo", "pytest", "pytest", "pytest"]
    assert not any("--no-run" in call for call in calls)  # building is set-up
    beside = "-m not measures and (thorough or not unit) tests/contract tests/fleet tests/lab tests/unit/test_long.py"
    assert calls[3].endswith(beside)
    assert "tests/lab/test_disturbed.py tests/lab/test_times.py -m measures and not alone" in calls[4]
    assert calls[5].endswith(" tests/lab/test_disturbed.py -m alone")
    assert all("--durations=10" in call for call in calls[3:])
    times = done.stdout.partition("== Times\n")[2].splitlines()
    assert len(times) == 5 and all(re.fullmatch(r" +\d+ s  \w.*", line) for line in times)


@pytest.mark.parametrize(("folder", "mark"), [("unit", "thorough"), ("lab", "measures"), ("lab", "alone")])
def test_marks_stand_in_the_files_of_their_tests(folder: str, mark: str) -> None:
    """By these words `scripts/test` chooses files: a mark that another file gave would leave its tests out."""
    tests = SCRIPT.parents[1] / "tests"
    marked = [path for path in tests.rglob("*.py") if f"mark.{mark}" in path.read_text(encoding="utf-8")]
    ours = {path for path in marked if path.parent == tests / folder and path.name.startswith("test_")}
    elsewhere = {"contract", "fleet"} if mark == "thorough" else set()
    assert ours and all(path in ours or path.parent.name in elsewhere or path == THIS for path in marked)


@pytest.mark.parametrize(("alone", "code"), [("exit 0", 0), ("exit 1", 1)])
def test_what_fails_beside_another_measurement_is_measured_alone(checkout: Checkout, alone: str, code: int) -> None:
    beside, not_beside = (f'[ {sign} "${BESIDE_OTHERS}" ] || exit 9' for sign in ("-n", "-z"))
    cases = (
        f"*last-failed*) {not_beside}; {alone} ;; *'-m alone'*) {not_beside} ;; *'-m measures'*) {beside}; exit 1 ;;"
    )
    checkout.program("bin/pytest", f"case $* in {cases} esac")
    done, calls = checkout.run()
    assert done.returncode == code
    (beside_others,) = (number for number, call in enumerate(calls) if " -n 4 " in call)
    again = calls[beside_others + 1 :]
    files = "tests/lab/test_disturbed.py tests/lab/test_times.py"
    assert again[0].endswith(f" {files} -m measures --last-failed")
    assert [call.endswith(" -m alone") for call in again[1:]] == [True] * (not code)
    (noted,) = {word for call in calls[beside_others:] for word in call.split() if word.startswith("cache_dir=")}
    assert not Path(noted.removeprefix("cache_dir=")).exists()


def test_it_ends_at_the_first_tier_that_fails(checkout: Checkout) -> None:
    checkout.program("scripts/check", "exit 3")
    done, calls = checkout.run()
    assert done.returncode == 3 and sorted(names(calls[:3])) == ["cargo", "cargo", "pytest"]
    assert names(calls[3:]) == ["check"]
    assert done.stdout.splitlines()[-1].endswith("unit tests (failed)")


def test_a_soak_runs_all_tiers_resumes_and_starts_anew(checkout: Checkout) -> None:
    checkout.program("bin/pytest", "[[ $* == *'not measures'* ]] && exit 1")
    results = checkout.folder / "soak" / "results.jsonl"
    results.write_text("earlier")
    done, calls = checkout.run("--soak")
    assert done.returncode == 1 and names(calls) == [*2 * ["cargo"], *4 * ["pytest"]]
    assert all("--soak --soak-results soak/results.jsonl" in call for call in calls[2:])
    assert results.exists()
    checkout.run("--soak", FRESH="1")
    assert not results.exists()


def test_whole_studies_have_a_verb_of_their_own(checkout: Checkout) -> None:
    done, calls = checkout.run("--studies")
    assert done.returncode == 0 and names(calls) == ["pytest"]
    assert "--soak-results soak/results.jsonl" in calls[0] and "-k test_each_study_whole" in calls[0]


def test_an_ordinary_user_is_root_for_the_lab_only(checkout: Checkout) -> None:
    checkout.program("bin/id", "echo 1000")
    done, calls = checkout.run()
    assert done.returncode == 2 and names(calls) == ["id"]
    assert "need root, and sudo is not here" in done.stderr
    checkout.program("bin/sudo", 'exec "$@"')
    done, calls = checkout.run()
    assert done.returncode == 0, done.stderr
    assert names(calls[:1]) == ["id"] and sorted(names(calls[1:4])) == ["cargo", "cargo", "pytest"]
    assert names(calls[4:]) == ["check", *2 * ["cargo"], *4 * ["sudo", "pytest"]][:-1]


def test_checkouts_that_share_cargos_cache_do_not_take_each_others_crates(tmp_path: Path) -> None:
    source = f". {shlex.quote(str(SCRIPT.with_name('own-build')))}"
    cache = {"PATH": os.environ["PATH"], "CARGO_TARGET_DIR": str(tmp_path / "cache")}
    files = []
    for name in ("one", "two"):
        files.append(tmp_path / name / "rust/clientkit/src/lib.rs")
        files[-1].parent.mkdir(parents=True)
        files[-1].touch()
        (tmp_path / name / "Cargo.toml").touch()
    newer = []
    for name in ("one", "one", "two", "one"):
        for file in files:
            os.utime(file, (0, 0))
        subprocess.run(["bash", "-euc", source], cwd=tmp_path / name, env=cache, check=True)
        newer.append([file.stat().st_mtime > 0 for file in files])
    assert newer == [[True, False], [False, False], [False, True], [True, False]]


@pytest.fixture
def set_up(tmp_path: Path) -> Callable[[str], str]:
    """Runs a command with the functions of `scripts/setup`, as root of a machine with apt-get and a compiler of C."""
    bin_, policy = tmp_path / "bin", tmp_path / "policy-rc.d"
    bin_.mkdir()
    for name in ("awk", "bash", "cat", "chmod", "grep", "head", "mv", "rm", "sort"):
        (bin_ / name).symlink_to(shutil.which(name) or name)
    for name, body in {"apt-get": f"cat {policy} > {tmp_path}/seen", "cc": ""}.items():
        (bin_ / name).write_text(f"#!{bin_}/bash\n{body}\n")
        (bin_ / name).chmod(0o755)
    functions = SCRIPT.with_name("setup").read_text().partition("# Two checkouts share the cache")[0]
    assert functions.count("/usr/sbin/policy-rc.d") == 1, "set where the test replaces it"

    def run(command: str) -> str:
        script = f'{functions}\nPATH={bin_} POLICY={policy}\nas_root() {{ "$@"; }}\n{command}\n'
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60)
        return done.stdout

    return run


def test_a_compiler_of_c_alone_does_not_suffice(set_up: Callable[[str], str]) -> None:
    """BoringSSL's cmake failed minutes later, for want of a compiler of C++."""
    assert "build-essential" in set_up("missing_packages").split()


def test_what_a_power_cut_left_of_set_up_is_no_policy_of_the_admin(
    set_up: Callable[[str], str], tmp_path: Path
) -> None:
    """It would forbid every service that is installed later on this machine, and be kept by each later set-up."""
    policy, kept, seen = tmp_path / "policy-rc.d", tmp_path / "policy-rc.d.kept", tmp_path / "seen"
    install = 'missing_packages() { printf "${WANTED-caddy\\n}"; }\ninstall_packages'
    set_up(install)
    ours = seen.read_text()
    assert "exit 101" in ours and not policy.exists(), "of a machine without one"
    for before in ("#!/bin/sh\nexit 101\n", None):
        for left in (None, ours):
            for path, text in ((policy, left or before), (kept, left and before)):
                path.unlink(missing_ok=True)
                if text is not None:
                    path.write_text(text)
            set_up(install)
            assert seen.read_text() == ours
            assert (policy.read_text() if policy.exists() else None) == before and not kept.exists()
    policy.write_text(ours)
    seen.unlink()
    set_up(f'WANTED=""\n{install}')
    assert not policy.exists() and not seen.exists(), "nothing is missing, and nothing is installed"


@pytest.mark.parametrize(
    ("program", "has", "remedy"), [("cargo", "1.80.0", "rustup default"), ("uv", "0.4.9", "update")]
)
def test_a_program_that_stays_too_old_is_told_at_once(
    set_up: Callable[[str], str], tmp_path: Path, program: str, has: str, remedy: str
) -> None:
    """rustup keeps a default toolchain that somebody has chosen; old ones failed minutes later, in others' words."""
    stubs = f'{program}() {{ echo "{program} {has} (of 2024)"; }}\n'
    step = {"cargo": "rustup_script() { echo true; }\nsh() { :; }\ninstall_rust", "uv": "install_uv"}[program]
    told = set_up(f"{stubs}\n({step}) 2>&1 || echo status $?")
    assert f"{program} is {'still ' if program == 'cargo' else ''}{has}" in told and remedy in told
    assert told.splitlines()[-1] == "status 2"
