"""Plans: made from a schedule, written and read as canonical text, and checked by an independent validator."""

from cpipe.plan.codec import decode_plan, encode_plan, load_plan, read_plan
from cpipe.plan.digest import plan_digest, problem_digest
from cpipe.plan.lift import late_sends, lift, posting_gates
from cpipe.plan.lower import lower
from cpipe.plan.schema import plan_schema
from cpipe.plan.validate import TRANSPORTS, safe_transports, validate

__all__ = [
    "TRANSPORTS",
    "decode_plan",
    "encode_plan",
    "late_sends",
    "lift",
    "load_plan",
    "lower",
    "plan_digest",
    "plan_schema",
    "posting_gates",
    "problem_digest",
    "read_plan",
    "safe_transports",
    "validate",
]
