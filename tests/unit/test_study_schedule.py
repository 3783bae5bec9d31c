"""What a run of a study makes when: blocks, their pieces, and which of them are made side by side."""

from __future__ import annotations

import functools
import heapq
import math
from collections import Counter

import pytest

from core.files.study import Study
from core.files.study_terms import MOST_MBIT
from tests.unit.study_samples import COMPETING, study
from upshift.study.lane import CENSORED_S
from upshift.study.schedule import PIECE_S, Agenda, LaneBlock, blocks, makespan, repetitions
from vantage.programs import sender

PATHS = COMPETING.replace('lanes = "rate_mbit"', 'lanes = ["rate_mbit", "rtt_ms", "queue"]')
LANES = 12


@functools.cache
def study_of(text: str) -> Study:
    return study(text)


def names(made: Study) -> set[str]:
    return {name for _, own in repetitions(made) for name in own}


@pytest.mark.thorough
@pytest.mark.parametrize("text", [COMPETING, PATHS, COMPETING.replace('lanes = "rate_mbit"', "")])
def test_each_repetition_is_handed_out_once_and_no_level_twice_at_once(text: str) -> None:
    made = study_of(text)
    agenda, running, now, done = Agenda(blocks(made, names(made))), list[tuple[float, int]](), 0.0, set()
    started: dict[int, LaneBlock] = {}
    while True:
        block = agenda.take() if len(running) < LANES else None
        if block is not None:
            among = [started[number] for _, number in running]
            assert block.level not in {one.level for one in among}
            assert block.mbit + sum(one.mbit for one in among) <= MOST_MBIT
            assert block.seconds <= PIECE_S + 20
            assert not done & {name for name, _ in block.work}
            done |= {name for name, _ in block.work}
            started[len(started)] = block
            heapq.heappush(running, (now + block.seconds, len(started) - 1))
        elif running:
            now, number = heapq.heappop(running)
            agenda.end(started[number])
        else:
            break
    assert done == names(made)


@pytest.mark.thorough
def test_paths_side_by_side_take_less_than_half_of_the_time() -> None:
    """The rates and times of the study allow 2.3 hours at 300 Mbit/s together, and 4.9 with one path of 100 at once."""
    by_rate, by_path = study_of(COMPETING), study_of(PATHS)
    waiting = blocks(by_path, names(by_path))
    least = sum(block.mbit * block.seconds for block in waiting) / MOST_MBIT
    assert least < makespan(waiting, LANES) < 1.2 * least
    assert makespan(waiting, LANES) < makespan(blocks(by_rate, names(by_rate)), LANES) / 2


def test_what_was_made_before_a_stop_is_spread_over_all_levels() -> None:
    made = study_of(PATHS)
    waiting = blocks(made, names(made))
    agenda, total, begun = Agenda(waiting), Counter[str](), Counter[str]()
    for block in waiting:
        total[str(block.level)] += len(block.work)
    while sum(begun.values()) < total.total() / 2:
        block = agenda.take()
        assert block is not None
        begun[str(block.level)] += len(block.work)
        agenda.end(block)
    assert all(0.2 < begun[level] / total[level] < 0.9 for level in total)


def test_a_resumed_run_has_the_same_order() -> None:
    made = study_of(PATHS)
    whole = blocks(made, names(made))
    left = {name for block in whole[::2] for name, _ in block.work[3:]}
    assert [block.work for block in blocks(made, left)] == [block.work[3:] for block in whole[::2]]


@pytest.mark.thorough
def test_nothing_starts_after_the_end() -> None:
    made = study_of(PATHS)
    waiting = blocks(made, names(made))
    assert Agenda(waiting, until=1.0).begin() is None
    assert Agenda(waiting, until=math.inf).begin() is not None


def test_a_sender_is_patient_for_longer_than_a_flow_may_take() -> None:
    """A page over 0.256 Mbit/s takes 38 s; its connections that ended early are asked for their TCP_INFO then."""
    assert sender.IDLE_S > CENSORED_S + 10
