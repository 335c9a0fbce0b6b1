"""Is a language model in bf16 told to be healthy, with its MFU, and nothing else found of the GPU?"""

from __future__ import annotations

from typing import Any

from _watched import finding

WRONG = ("COMP002", "COMP003", "COMP004", "XFER001", "GPU003", "GPU004", "GPU005", "MEM003")


def check() -> dict[str, Any]:
    answer = finding("transformer.py", "COMP001")
    codes = [each["code"] for each in answer.get("findings", ())]
    answer["failed"] += [f"finding {code} was made of a healthy run" for code in codes if code in WRONG]
    if "findings" in answer and answer["mfu"] is None:
        answer["failed"].append(f"there is no MFU: {answer['unavailable'].get('mfu')}")
    if not answer["figures"]["losses_seen"]:
        answer["failed"].append("no loss was read")
    return answer
