"""Options for the price of this machine per hour: a number, or the name of a cloud instance."""

from __future__ import annotations

import click

from paceline.cli.base.numbers import FiniteFloat
from paceline.core.errors import UsageError
from paceline.hardware.catalogue import find_instance, instances

by_number = click.option(
    "--price", type=FiniteFloat(min=0), metavar="USD", help="Price of this machine per hour, in USD."
)


def _complete_instance(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the cloud instances whose names begin with the given text, for shell completion."""
    names = (one.instance_type for one in instances())
    return sorted({name for name in names if name.startswith(incomplete)})


by_instance = click.option(
    "--instance",
    metavar="NAME",
    shell_complete=_complete_instance,
    help="Use the price of this cloud instance, such as p5.48xlarge.",
)


def price_of(price: float | None, instance_name: str | None) -> tuple[float | None, str]:
    """Return the price per hour in US dollars and its source; None and an empty text without a price.

    Raises:
        UsageError: The instance is unknown or has no price.
    """
    if price is not None:
        return price, "given with --price"
    if instance_name is None:
        return None, ""
    instance = find_instance(instance_name)
    if instance.on_demand_usd_h is None:
        raise UsageError(f"the price of {instance_name} is unknown; give it with --price USD")
    return instance.on_demand_usd_h, f"{instance.instance_type}, {instance.price_source}"
