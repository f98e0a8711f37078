"""What speculative decoding gains where text is copied, and costs where it is not.

    python benchmarks/speculation.py [--model smollm2] [--draft-model NAME] [--rounds 5]

The model is loaded once for each setting; in a round each work is answered by one after the other,
in an order that turns round. Rates are output tokens per second after the first token; gains are
taken within a round, and their median is shown. The answers must be equal to the last bit, or the
run ends with an error. Greedy, at most --tokens each, prefix cache off.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from tidemill import LLM, SamplingParams
from tidemill.llm import RequestOutput

BASKET = '''\
class Basket:
    """What a customer is about to buy."""

    def __init__(self, currency):
        self.currency = currency
        self.lines = []

    def add(self, product, quantity):
        if quantity < 1:
            raise ValueError("the quantity must be at least 1")
        for line in self.lines:
            if line.product == product:
                line.quantity += quantity
                return line
        line = Line(product, quantity)
        self.lines.append(line)
        return line

    def remove(self, product):
        self.lines = [line for line in self.lines if line.product != product]

    def total(self):
        amount = 0
        for line in self.lines:
            amount += line.product.price * line.quantity
        return amount

    def describe(self):
        parts = []
        for line in self.lines:
            parts.append(f"{line.quantity} x {line.product.name}")
        return ", ".join(parts)
'''

SETTINGS = """\
[server]
host = "127.0.0.1"
port = 8080
workers = 4
timeout = 30

[database]
host = "127.0.0.1"
port = 5432
name = "orders"
user = "orders"
pool = 10

[cache]
host = "127.0.0.1"
port = 6379
ttl = 600

[log]
level = "info"
file = "/var/log/orders.log"
"""

MILL = """\
The tide mill at the mouth of the river was built in 1170 and worked for almost eight hundred years.
Twice a day the flood filled the pond behind the dam, and the gates closed by themselves when the
water turned. The miller then waited until the level below the wheel had fallen, opened the sluice,
and had about four hours in which to grind before the next tide drowned the wheel. Because the tide
comes about fifty minutes later each day, the working hours moved round the clock, and the miller's
family slept whenever the water allowed it. In 1740 the single oak wheel was replaced by a pair,
which doubled the output to two tons of flour a tide. Steam mills in the town took most of the trade
after 1850, but the tide mill went on grinding animal feed until the shaft of the wheel broke in
1957. It stood empty for eleven years, was bought by a group of volunteers, and has been grinding
again for visitors since 1982.
"""

MINUTES = """\
Minutes of the harbour committee, 4 May. Present: Ada Brook, Tom Lindqvist, Mira Castellano, Jonas
Weber. Ada Brook reported that the new crane arrived on 28 April and passed its load test at twelve
tons. Tom Lindqvist said that the east quay has sunk by three centimetres since the survey in autumn
and asked for a second survey before heavy loads are put there. The committee agreed, and until then
limits loads on the east quay to five tons. Mira Castellano presented the budget: 310,000 for
dredging, 85,000 for the crane, 40,000 for lighting. Jonas Weber objected that dredging was put off
last year too, and that two ferries touched ground in March. It was decided to bring the dredging
forward to June and to put off the lighting. The next meeting is on 1 June.
"""

WORKS = {
    "edit: rename in a class": "Rename the method `describe` to `summary` in this Python class and"
    f" give back the whole class, otherwise unchanged.\n\n```python\n{BASKET}```",
    "edit: change a setting": "Change the port of the database to 5433 in this file and give back"
    f" the whole file, otherwise unchanged.\n\n```toml\n{SETTINGS}```",
    "summary: history": "Summarise the following text in five sentences, in its own words as far"
    f" as possible.\n\n{MILL}",
    "summary: minutes": "List the decisions and figures of these minutes, quoting the sentences"
    f" that they come from.\n\n{MINUTES}",
    "no help: a story": "Write a story about a lighthouse keeper and a lost whale.",
    "no help: an explanation": "Explain how a sailing boat can move against the wind.",
}  # fmt: skip


class Setting:
    """One way of decoding, and what it has measured by work."""

    def __init__(self, name: str, llm: LLM) -> None:
        self.name = name
        self.llm = llm
        # A model without a template of its own gets the one that its vocabulary is made for.
        self.template = None if llm.core.has_chat_template else llm.core.fitting_template()
        self.rates: dict[str, list[float]] = {work: [] for work in WORKS}
        self.drafted: dict[str, int] = {}
        self.accepted: dict[str, int] = {}
        self.tokens: dict[str, list[int]] = {}

    def chat(self, text: str, params: SamplingParams) -> RequestOutput:
        message = [{"role": "user", "content": text}]
        (output,) = self.llm.chat(message, params, chat_template=self.template)
        return output

    def answer(self, work: str, params: SamplingParams) -> None:
        output = self.chat(WORKS[work], params)
        self.rates[work].append(_rate(output))
        self.drafted[work] = output.metrics.drafted_tokens
        self.accepted[work] = output.metrics.accepted_tokens
        self.tokens[work] = output.outputs[0].token_ids


def _rate(output: RequestOutput) -> float:
    metrics, n = output.metrics, len(output.outputs[0].token_ids)
    if output.error or n < 2 or metrics.first_token_time is None:
        raise SystemExit(f"no answer to measure: {output.error or 'it is too short'}")
    assert metrics.last_token_time is not None
    return (n - 1) / (metrics.last_token_time - metrics.first_token_time)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft-model")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    common: dict[str, Any] = {
        "threads": arguments.threads, "max_sequences": 1, "prefix_caching": False
    }  # fmt: skip
    settings = [
        Setting(name, LLM(arguments.model, speculative=name, **common))
        for name in ("off", "auto", "lookup")
    ]
    if arguments.draft_model:
        llm = LLM(arguments.model, draft_model=arguments.draft_model, **common)
        settings.append(Setting("draft model", llm))
    params = SamplingParams(temperature=0, max_tokens=arguments.tokens, ignore_eos=True)
    warm_up = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    for setting in settings:
        setting.chat(MILL, warm_up)
    for number in range(arguments.rounds):
        order = settings[number % len(settings) :] + settings[: number % len(settings)]
        for work in WORKS:
            for setting in order:
                setting.answer(work, params)
            if any(setting.tokens[work] != settings[0].tokens[work] for setting in settings):
                raise SystemExit(f"{work}: the answers differ")
    rows = []
    print(f"{'work':26} {'setting':12} {'tok/s':>7} {'gain':>6} {'guessed':>8} {'right':>6}")
    for work in WORKS:
        for setting in settings:
            rates, base = setting.rates[work], settings[0].rates[work]
            gain = statistics.median(a / b for a, b in zip(rates, base, strict=True))
            rate = statistics.median(rates)
            drafted, accepted = setting.drafted[work], setting.accepted[work]
            right = f"{accepted / drafted:6.0%}" if drafted else "     -"
            print(f"{work:26} {setting.name:12} {rate:7.1f} {gain:6.2f} {drafted:8} {right}")
            rows.append(
                {"work": work, "setting": setting.name, "rates": rates, "gain": gain,
                 "drafted": drafted, "accepted": accepted}
            )  # fmt: skip
    if arguments.json:
        details = {"model": arguments.model, "draft_model": arguments.draft_model,
                   "tokens": arguments.tokens, "rows": rows}  # fmt: skip
        arguments.json.write_text(json.dumps(details, indent=2) + "\n")


if __name__ == "__main__":
    main()
