"""How a call can end; imports nothing, as the program's start needs it.

====  ==============================================
code  meaning
====  ==============================================
0     done, the answer is yes
1     done, the answer is no
2     usage
3     an input cannot be read or is not valid
4     proven infeasible
5     no acceptable answer within the limits
70    a bug of cpipe
129   ended by SIGHUP, while ranks ran
130   interrupted
141   nobody reads standard output any more
143   ended by SIGTERM, while ranks ran
====  ==============================================

Codes 3 to 5 belong to the exceptions of `cpipe.errors`.
"""

from __future__ import annotations

__all__ = ["BROKEN_PIPE", "INTERNAL_ERROR", "INTERRUPTED", "USAGE"]

USAGE = 2
INTERNAL_ERROR = 70
INTERRUPTED = 130
BROKEN_PIPE = 141
