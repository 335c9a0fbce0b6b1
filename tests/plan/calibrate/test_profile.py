from __future__ import annotations

from datetime import date

import msgspec
import pytest
from tests.plan.profiles import profile

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.plan.calibrate.profile import default_path, profile_doubts, read_profile, write_profile

TODAY = date(2026, 11, 22)


def test_a_profile_comes_back_as_it_was(tmp_path):
    path = tmp_path / "deep" / "profile.json"
    write_profile(profile(), path)
    assert read_profile(path) == profile()
    assert [each.name for each in path.parent.iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a machine profile, or is damaged"),
        ('{"schema": "paceline.profile/1", "made"', "is not a machine profile, or is damaged"),
        ('{"schema": "paceline.profile/1", "made": 3}', "is not a machine profile, or is damaged"),
        ('{"schema": "paceline.profile/9"}', "reads 'paceline.profile/1'"),
        ('{"name": "somebody else\'s"}', "is not a machine profile, or is damaged"),
    ],
)
def test_what_is_no_profile_is_said_with_the_way_out(tmp_path, text, message):
    path = tmp_path / "profile.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message) as error:
        read_profile(path)
    assert "paceline plan --calibrate" in str(error.value)


def test_half_a_file_is_no_profile(tmp_path):
    path = tmp_path / "profile.json"
    encoded = msgspec.json.encode(profile())
    path.write_bytes(encoded[: len(encoded) // 2])
    with pytest.raises(UsageError, match="damaged"):
        read_profile(path)


def test_one_that_is_not_there_and_one_that_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match="no machine profile at"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match="cannot write"):
        write_profile(profile(), tmp_path / "file" / "profile.json")


def test_doubts_are_told():
    assert profile_doubts(profile(), TODAY, here=True) == []
    assert "91 days old" in profile_doubts(profile(day=date(2026, 8, 23)), TODAY, here=True)[0]
    assert profile_doubts(profile(day=date(2026, 8, 24)), TODAY, here=True) == []
    assert "of another machine (there: Abacus" in profile_doubts(profile(cpu_model="Abacus"), TODAY, here=True)[0]
    assert profile_doubts(profile(cpu_model="Abacus"), TODAY, here=False) == []
    assert "other processes used" in profile_doubts(profile(others_cores=1e3), TODAY, here=True)[0]


def test_where_a_profile_is_kept():
    assert str(default_path({"XDG_STATE_HOME": "/state"})).startswith("/state/paceline/profile-")
    assert str(default_path({"XDG_STATE_HOME": "state", "HOME": "/h"})).startswith("/h/.local/state/paceline/profile-")


def test_only_ranks_that_were_measured_are_known():
    assert profile().place(2).threads == 1
    with pytest.raises(UsageError, match="of there contains measurements of 1, 2 ranks, not of 4"):
        profile().place(4)
