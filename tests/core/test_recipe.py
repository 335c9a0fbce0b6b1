"""Recipes: put together, checked, written and read."""

from __future__ import annotations

import tomllib

import pytest

from paceline.core import recipe as recipes
from paceline.core.errors import UsageError


def test_the_last_setting_counts():
    first = {"loader": {"num_workers": 4, "prefetch_factor": 4}}
    assert recipes.merge_recipes(first, {"loader": {"num_workers": 8}, "precision": {"autocast": "bf16"}}) == {
        "loader": {"num_workers": 8, "prefetch_factor": 4},
        "precision": {"autocast": "bf16"},
    }
    assert first == {"loader": {"num_workers": 4, "prefetch_factor": 4}}


def test_without_workers_nothing_is_said_of_them():
    workers = {"loader": {"num_workers": 4, "persistent_workers": True, "prefetch_factor": 4}}
    assert recipes.merge_recipes(workers, {"loader": {"num_workers": 0, "threads": 2}}) == {
        "loader": {"num_workers": 0, "threads": 2}
    }


def test_what_is_written_is_read_again(tmp_path):
    recipe = {"loader": {"num_workers": 8, "persistent_workers": True}, "compute": {"compile": "default"}}
    path = tmp_path / "recipe.toml"
    path.write_text(recipes.recipe_toml(recipe, {"loader.num_workers": "was 2"}))
    assert recipes.read_recipe(path) == recipe
    assert "num_workers = 8  # was 2" in path.read_text()
    assert tomllib.loads(path.read_text()) == recipe


@pytest.mark.parametrize(
    "text, words",
    [
        ("[loder]\nnum_workers = 2", ["no section [loder]", "did you mean loader?"]),
        ("[loader]\nnum_worker = 2", ["no setting loader.num_worker", "did you mean loader.num_workers?"]),
        ("[loader]\nnum_workers = 999", ["loader.num_workers = 999", "a whole number from 0 to 256"]),
        ("[loader]\nnum_workers = true", ["True is not allowed"]),
        ('[precision]\nautocast = "fp8"', ["'fp8' is not allowed", "'bf16'"]),
        ("loader = 3", ["'loader' must be a section"]),
        ("[loader", ["is not a recipe"]),
    ],
)
def test_a_wrong_recipe_is_told_with_the_way_out(tmp_path, text, words):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        recipes.read_recipe(path)
    assert all(word in str(error.value) for word in words)


def test_a_recipe_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="paceline tune"):
        recipes.read_recipe(tmp_path / "none.toml")
