"""A plan as a JSON object. Units are in the names of the fields; unknown values are null."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from paceline import __version__
from paceline.plan.cost.flops import flops_of
from paceline.plan.cost.plan import Plan
from paceline.plan.search.advice import Advice, exposed
from paceline.plan.search.offers import MachineOffer, Offers
from paceline.plan.search.wish import Wish

SCHEMA = "paceline.plan/1"


def to_json(advice: Advice) -> dict[str, Any]:
    """Return the JSON object of the plans for one cluster."""
    return {
        **_head(),
        "model": asdict(advice.wish.model) | {"params": advice.wish.model.params},
        "machines": _machines(advice),
        "global_batch": advice.wish.global_batch,
        "states": _states(advice.wish),
        "best": _plan(advice.best) if advice.best else None,
        "nearest": _plan(advice.found.nearest),
        "plans": [_plan(plan) for plan in advice.found.plans],
        "looked_at": advice.found.looked_at,
        "played": advice.found.played,
        "rejected": advice.found.rejected,
        "step_spread": advice.spread,
        "largest_micro_batch": advice.largest_micro_batch,
        "scaling": [
            {
                "gpus": each.plan.case.cluster.count,
                "tokens_per_s": each.plan.tokens_per_s,
                "samples_per_s": each.plan.samples_per_s,
                "efficiency": each.efficiency,
                "exposed": each.exposed,
                "layout": str(each.plan.case.layout),
            }
            for each in advice.scaling
        ],
        "formats": [_plan(plan) for plan in advice.formats],
        "cost": asdict(advice.cost) if advice.cost else None,
    }


def offers_to_json(found: Offers) -> dict[str, Any]:
    """Return the JSON object of machine offers: the best offers and the beaten offers, each cheapest first."""
    return {
        **_head(),
        "offers": [_offer(offer) for offer in found.best],
        "beaten": [_offer(offer) for offer in found.beaten],
        "cheapest_spot": None if found.cheapest_spot is None else _offer(found.cheapest_spot),
        "refused": found.refused,
    }


def _offer(offer: MachineOffer) -> dict[str, Any]:
    return {
        "usd": offer.usd,
        "usd_low": offer.ends(offer.usd)[0],
        "usd_high": offer.ends(offer.usd)[1],
        "hours": offer.hours,
        "hours_low": offer.ends(offer.hours)[0],
        "hours_high": offer.ends(offer.hours)[1],
        "spot": asdict(offer.spot) if offer.spot else None,
        "usd_per_hour": offer.machines.usd_per_hour,
        "nodes": offer.machines.cluster.nodes,
        "instance": asdict(offer.machines.instance) if offer.machines.instance else None,
        "plan": _plan(offer.plan),
    }


def _head() -> dict[str, Any]:
    return {"schema": SCHEMA, "paceline_version": __version__}


def _states(wish: Wish) -> dict[str, Any]:
    """Return the bytes per weight of weights, gradients and optimizer state, with the settings that determine them."""
    weight, gradient, optimizer = wish.states
    return {
        "optimizer": wish.optimizer,
        "weight_bytes": weight,
        "gradient_bytes": gradient,
        "optimizer_bytes": optimizer,
        "kernels": wish.kernels,
        "adapted": asdict(wish.adapted) if wish.adapted.adapters else None,
    }


def _machines(advice: Advice) -> dict[str, Any]:
    cluster = advice.machines.cluster
    return {
        "name": advice.machines.name,
        "gpu": cluster.gpu.name,
        "gpus": cluster.count,
        "per_node": cluster.per_node,
        "memory_bytes": cluster.memory_bytes,
        "usd_per_hour": advice.machines.usd_per_hour,
    }


def _plan(plan: Plan) -> dict[str, Any]:
    how = plan.case.training
    return {
        "layout": str(plan.case.layout),
        "micro_batch": how.micro_batch,
        "micro_steps": how.micro_steps,
        "precision": how.precision,
        "recompute": how.recompute,
        "pipeline": _pipeline(plan) if plan.case.layout.pp > 1 else None,
        "step_s": plan.step_s,
        "flops": asdict(flops_of(plan.case, plan.step_s)),
        "step_parts_s": plan.step_parts,
        "tokens_per_s": plan.tokens_per_s,
        "samples_per_s": plan.samples_per_s,
        "exposed": exposed(plan),
        "memory_bytes": plan.memory_bytes,
        "reserved_bytes": plan.reserved_bytes,
        "allocated_bytes": plan.allocated_bytes,
        "memory_parts_bytes": plan.memory_parts,
        "fits": plan.fits,
    }


def _pipeline(plan: Plan) -> dict[str, Any]:
    """Return the pipeline schedule. Values that need a simulation are null if the plan was not simulated."""
    how, stages = plan.case.training, plan.stages
    return {
        "schedule": how.schedule,
        "chunks": how.chunks,
        "stage_blocks": list(stages.blocks) if stages else None,
        "rank_memory_bytes": list(stages.memory_bytes) if stages else None,
        "idle": stages.run.idle if stages else None,
    }
