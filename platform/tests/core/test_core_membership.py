from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.core.membership import TrainingWorld, WorldMember, compute_world

SILENCE = 10.0
members = st.lists(
    st.builds(WorldMember, st.sampled_from("abcdefgh"), st.integers(0, 9), st.floats(0, 100), st.booleans()),
    unique_by=lambda member: member.uid,
)


@given(st.lists(members, max_size=8), st.integers(1, 3))
def test_worlds_follow_one_another_by_the_rules(views: list[list[WorldMember]], smallest: int) -> None:
    world, now = TrainingWorld(0, ()), 0.0
    for view in views:
        now += 20.0
        before, decision = world, compute_world(world, view, now, silence_seconds=SILENCE, min_members=smallest)
        world = decision.value
        heard = {member.uid for member in view if member.ready and now - member.last_seen <= SILENCE}
        assert decision.reason
        if world is before:
            assert set(world.members) == heard or (not world.members and len(heard) < smallest)
            continue
        assert world.round == before.round + 1, "rounds only increase"
        assert set(world.members) == (heard if len(heard) >= smallest else set())
        assert [world.rank(uid) for uid in world.members] == list(range(len(world.members))), "ranks are dense"
        if world.members:
            kept = [uid for uid in before.members if uid in heard]
            assert list(world.members[: len(kept)]) == kept, "survivors keep their order and come first"


def test_newcomers_come_in_the_order_of_their_index() -> None:
    world = TrainingWorld(3, ("c",))
    view = [WorldMember("b", 5, 0.0), WorldMember("a", 2, 0.0), WorldMember("c", 9, 0.0)]
    decision = compute_world(world, view, 1.0, silence_seconds=SILENCE, min_members=1)
    assert decision.value == TrainingWorld(4, ("c", "a", "b"))
    assert decision.reason == "2 joined, 0 left"


def test_nobody_steps_in_a_world_that_is_too_small() -> None:
    decision = compute_world(
        TrainingWorld(3, ("a", "b")), [WorldMember("a", 0, 0.0)], 1.0, silence_seconds=SILENCE, min_members=2
    )
    assert decision.value == TrainingWorld(4, ())
    assert decision.reason == "1 of at least 2 workers are there"
    assert compute_world(decision.value, [], 2.0, silence_seconds=SILENCE, min_members=2).value is decision.value


def test_who_is_not_in_the_world_has_no_rank() -> None:
    assert TrainingWorld(1, ("a",)).rank("b") is None
