"""A short scenario of a user's own, for commands that measure."""

SLO = "slo = { ttft = 50 }\n"
MINE = f"""
name = "mine"
summary = "a test"
source = "nowhere"
seconds = 0.5
warmup = 0.1
timeout = 60
{SLO}
[load]
kind = "closed"
concurrency = 2

[[shapes]]
name = "chat"
input = {{ kind = "fixed", tokens = 5 }}
output = {{ kind = "fixed", tokens = 4 }}
"""
