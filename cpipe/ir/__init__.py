"""The types that travel between the parts of cpipe, with their local invariants and no algorithm."""

from cpipe.ir.base import InvariantError
from cpipe.ir.ops import Op, OpKind, decode_op, encode_op
from cpipe.ir.plan import Channel, Claims, Group, Instruction, MadeBy, Plan, ProblemSummary, RankProgram
from cpipe.ir.problem import Collectives, Device, Hop, Problem, Stage
from cpipe.ir.result import Bound, Objective, SolveResult
from cpipe.ir.schedule import Offload, Schedule
from cpipe.ir.timeline import CollectiveRun, CopyRun, MessageRun, Timeline

__all__ = [
    "Bound",
    "Channel",
    "Claims",
    "CollectiveRun",
    "Collectives",
    "CopyRun",
    "Device",
    "Group",
    "Hop",
    "Instruction",
    "InvariantError",
    "MadeBy",
    "MessageRun",
    "Objective",
    "Offload",
    "Op",
    "OpKind",
    "Plan",
    "Problem",
    "ProblemSummary",
    "RankProgram",
    "Schedule",
    "SolveResult",
    "Stage",
    "Timeline",
    "decode_op",
    "encode_op",
]
