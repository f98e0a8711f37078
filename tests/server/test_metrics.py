"""/metrics, over a real server, and what its numbers are."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.serving import Server, begin_request, by_key, paused, serving, until, write_keys
from tidemill.hardware.energy import EnergyMeters
from tidemill.server.keys import ANYBODY
from tidemill.server.metrics import Metrics
from tidemill.server.models import Models

ROOT = Path(__file__).parents[2]
REQUEST = {
    "model": "tiny",
    "prompt": "Hello",
    "max_tokens": 5,
    "temperature": 0,
    "ignore_eos": True,
}

# What the queries of vLLM's published dashboards ask for: examples/observability/
# prometheus_grafana/grafana.json, and the two of examples/online_serving/dashboards/grafana. The
# last four are older names of some, from before vLLM 0.9.
DASHBOARD = (
    "vllm:e2e_request_latency_seconds_bucket", "vllm:e2e_request_latency_seconds_sum",
    "vllm:e2e_request_latency_seconds_count", "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total", "vllm:inter_token_latency_seconds_bucket",
    "vllm:inter_token_latency_seconds_sum", "vllm:inter_token_latency_seconds_count",
    "vllm:num_requests_running", "vllm:num_requests_waiting",
    "vllm:time_to_first_token_seconds_bucket", "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count", "vllm:kv_cache_usage_perc",
    "vllm:request_prompt_tokens_bucket", "vllm:request_generation_tokens_bucket",
    "vllm:request_success_total", "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum", "vllm:request_decode_time_seconds_sum",
    "vllm:request_max_num_generation_tokens_sum", "vllm:time_per_output_token_seconds_bucket",
    "vllm:time_per_output_token_seconds_sum", "vllm:time_per_output_token_seconds_count",
    "vllm:gpu_cache_usage_perc",
)  # fmt: skip

# Lesson 24 of what goes wrong elsewhere: series that are empty after a request.
NON_EMPTY = (
    "vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count",
    "vllm:request_queue_time_seconds_count", "vllm:request_prefill_time_seconds_count",
    "vllm:request_decode_time_seconds_count", "vllm:e2e_request_latency_seconds_count",
    "vllm:request_time_per_output_token_seconds_count", "vllm:request_inference_time_seconds_count",
    "vllm:request_prompt_tokens_count", "vllm:request_generation_tokens_count",
    "vllm:request_prefill_kv_computed_tokens_count", "vllm:request_max_num_generation_tokens_count",
    "vllm:request_params_max_tokens_count", "vllm:request_params_n_count",
    "vllm:iteration_tokens_total_count", "tidemill:step_sequences_count",
    "vllm:request_success_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total", "vllm:cache_config_info", "tidemill:engine_steps_total",
    "tidemill:tenant_requests_total", "tidemill:tenant_prompt_tokens_total",
    "tidemill:tenant_generation_tokens_total", "tidemill:http_requests_total",
    "process_resident_memory_bytes", "tidemill:worker_resident_memory_bytes",
    "tidemill:worker_cpu_seconds_total", "python_gc_collections_total",
)  # fmt: skip
THERE = (  # and those that are zero after it, but not absent
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total", "vllm:prefix_cache_hits_total",
    "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total",
    "tidemill:tenant_refused_total", "tidemill:engine_failures_total",
    "tidemill:grammar_mask_seconds_count", "tidemill:grammar_step_seconds_total",
)  # fmt: skip

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def samples(server: Server, headers: dict[str, str] | None = None) -> Samples:
    """By name and labels; read by Prometheus' own parser, each series once."""
    found: Samples = defaultdict(dict)
    text = server.request("GET", "/metrics", headers=headers)[2].decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found[sample.name], sample
            found[sample.name][labels] = sample.value
    return found


@pytest.fixture(scope="module")
def fresh(tiny_chat_model: Path) -> Iterator[Server]:
    with serving(str(tiny_chat_model), "--name", "tiny", "--threads", "1") as found:
        yield found


def test_series_of_a_model_are_there_before_its_first_request_and_not_empty_after_it(
    tiny_chat_model: Path,
) -> None:
    with serving(str(tiny_chat_model), "--name", "tiny", "--threads", "1") as server:
        found = samples(server)
        assert sum(found["vllm:time_to_first_token_seconds_count"].values()) == 0
        assert [*found["vllm:kv_cache_usage_perc"].values()] == [0]
        ends = {dict(labels)["finished_reason"] for labels in found["vllm:request_success_total"]}
        assert ends == {"stop", "length", "abort", "error"}
        assert not any("None" in str(labels) for series in found.values() for labels in series)
        assert server.post("/v1/completions", REQUEST)[0] == 200
        found = samples(server)  # at once: what an answer took is counted before it is given
        assert [*found["vllm:generation_tokens_total"].values()] == [5]
        assert [name for name in NON_EMPTY if not any(found[name].values())] == []
        assert [name for name in THERE if not found[name]] == []


def test_a_dashboard_made_for_vllm_finds_what_it_asks_for(fresh: Server) -> None:
    found = samples(fresh)
    docs = (ROOT / "docs/server.md").read_text("utf-8")
    assert [name for name in DASHBOARD if not found[name] and name not in docs] == []
    for name in DASHBOARD:  # each is chosen by model_name
        assert all("model_name" in dict(labels) for labels in found[name])
    bounds = {dict(labels)["le"] for labels in found["vllm:iteration_tokens_total_bucket"]}
    assert {"1.0", "8.0", "16384.0", "+Inf"} <= bounds
    assert not [name for name in found if name.endswith("_created")]


def test_counters_are_named_as_such_and_typed(fresh: Server) -> None:
    text = fresh.request("GET", "/metrics")[2].decode()
    types = dict(re.findall(r"# TYPE (\S+) (\S+)", text))
    assert types["vllm:request_success_total"] == "counter"
    assert types["vllm:iteration_tokens_total"] == "histogram"
    assert types["vllm:kv_cache_usage_perc"] == "gauge"
    wrong = [name for name, kind in types.items() if kind == "counter" and "_total" not in name]
    assert wrong == []


def increase(server: Server, path: str, body: Any) -> dict[str, float]:
    """What a request adds to each series, over all its labels."""
    before = samples(server)
    assert server.request("POST", path, body)[0] == 200
    until(server.idle)
    after = samples(server)
    return {name: sum(after[name].values()) - sum(before[name].values()) for name in after}


def test_what_is_counted_is_what_came(fresh: Server) -> None:
    body = REQUEST | {"prompt": [5, 6, 7, 8, 9, 10], "n": 3, "max_tokens": 4}
    found = increase(fresh, "/v1/completions", body)
    assert found["vllm:request_prompt_tokens_sum"] == 6
    assert found["vllm:request_generation_tokens_count"] == 3
    assert found["vllm:request_generation_tokens_sum"] == 12
    assert found["vllm:request_max_num_generation_tokens_sum"] == 4
    assert found["vllm:request_params_n_sum"] == 3
    assert found["vllm:request_params_max_tokens_sum"] == 4
    assert found["vllm:request_success_total"] == 3
    assert found["vllm:time_to_first_token_seconds_count"] == 1
    assert found["vllm:inter_token_latency_seconds_count"] == 3
    parts = sum(found[f"vllm:request_{part}_time_seconds_sum"] for part in ("prefill", "decode"))
    assert parts == pytest.approx(found["vllm:request_inference_time_seconds_sum"])
    whole = parts + found["vllm:request_queue_time_seconds_sum"]
    assert whole <= found["vllm:e2e_request_latency_seconds_sum"] + 1e-6
    tpot = found["vllm:request_time_per_output_token_seconds_sum"]
    assert tpot == pytest.approx(found["vllm:request_decode_time_seconds_sum"] / 3)
    assert found["tidemill:tenant_prompt_tokens_total"] == 6
    assert found["tidemill:tenant_generation_tokens_total"] == 12


def test_the_cost_of_a_grammar_is_told_by_the_token(fresh: Server) -> None:
    found = increase(fresh, "/v1/completions", REQUEST | {"guided_regex": "[a-z]{9}", "n": 2})
    tokens = found["vllm:request_generation_tokens_sum"]
    assert found["tidemill:grammar_mask_seconds_count"] == tokens > 0
    assert found["tidemill:grammar_mask_seconds_sum"] > 0
    assert found["tidemill:grammar_step_seconds_total"] > 0
    plain = increase(fresh, "/v1/completions", REQUEST)
    assert plain["tidemill:grammar_mask_seconds_count"] == 0


def test_an_echoed_prompt_is_no_answer(fresh: Server) -> None:
    body = REQUEST | {"prompt": [5, 6, 7, 8], "echo": True, "max_tokens": 2}
    found = increase(fresh, "/v1/completions", body)
    assert found["vllm:request_generation_tokens_sum"] == 2
    assert found["tidemill:tenant_generation_tokens_total"] == 2


def test_the_first_token_is_told_while_the_rest_is_to_come(endless: tuple[str, ...]) -> None:
    with serving(*endless, "--name", "tiny", "--threads", "1") as server:
        body = REQUEST | {"max_tokens": 60_000, "n": 8, "temperature": 1}
        connection = begin_request(server, "/v1/completions", body)
        until(lambda: server.metric("vllm:time_to_first_token_seconds_count") == 1)
        assert server.metric("vllm:e2e_request_latency_seconds_count") == 0
        aborted = partial(server.metric, "vllm:request_success_total", finished_reason="abort")
        assert aborted() == 0
        connection.close()
        until(aborted)
        assert server.metric("vllm:e2e_request_latency_seconds_count") == 0


def test_waiting_for_a_turn_is_queue_time_and_part_of_the_rest(tiny_chat_model: Path) -> None:
    options = ("--name", "tiny", "--threads", "1", "--max-sequences", "1")
    with serving(str(tiny_chat_model), *options) as server:
        body = REQUEST | {"max_tokens": 600, "n": 3}
        threads = [
            threading.Thread(target=server.post, args=("/v1/completions", body)) for _ in range(6)
        ]
        with paused(server):  # until all are there
            for thread in threads:
                thread.start()
            until(lambda: server.waiting() == 5)
            waited = time.monotonic()
            time.sleep(0.2)
            waited = time.monotonic() - waited
        for thread in threads:
            thread.join()
        names = {
            part: server.metric(f"vllm:{part}_seconds_sum")
            for part in ("request_queue_time", "time_to_first_token", "request_inference_time",
                         "e2e_request_latency")
        }  # fmt: skip
        assert names["request_queue_time"] >= 5 * waited
        assert names["time_to_first_token"] > names["request_queue_time"]
        assert names["e2e_request_latency"] > names["time_to_first_token"]


def test_a_model_that_is_removed_leaves(tiny_chat_model: Path) -> None:
    with serving(str(tiny_chat_model), "--name", "tiny", "--threads", "1") as server:
        for i in range(3):
            model = {"source": str(tiny_chat_model), "name": f"other{i}", "threads": 1}
            assert server.post("/admin/models", model)[0] < 300
            assert server.post("/v1/completions", REQUEST | {"model": f"other{i}"})[0] == 200
            assert f"other{i}" in str(samples(server))
            assert server.request("DELETE", f"/admin/models/other{i}")[0] < 300
        assert "other" not in str(samples(server))
        series = sum(map(len, samples(server).values()))
        before = samples(server).keys()
        assert server.post("/admin/models/tiny/unload", {})[0] < 300
        # An unloaded one is still served: its requests are remembered, its engine is not there.
        found = samples(server)
        assert found["vllm:time_to_first_token_seconds_count"]
        assert not found["vllm:num_requests_running"]
        assert series > sum(map(len, found.values()))
        assert before > found.keys()


def test_what_clients_send_never_becomes_a_label(fresh: Server) -> None:
    for i in range(3):
        evil = f'evil{i}"\n}} 1'
        fresh.request("GET", f"/v1/models/evil{i}")
        fresh.request("GET", f"/evil{i}")
        fresh.request("GET", "/api/evil")
        fresh.request("EVIL", "/v1/models")
        headers = {"X-Request-Id": "evil", "Authorization": "Bearer evil", "User-Agent": "evil"}
        fresh.request("POST", "/v1/completions", REQUEST | {"model": evil, "user": "evil"}, headers)
    assert "evil" not in str(samples(fresh))


def test_tenants_have_accounts(tiny_chat_model: Path, tmp_path: Path) -> None:
    """Which are for themselves, and for who may see all: nobody learns whom else there is, nor of
    models that are not for them."""
    keys = tmp_path / "keys.toml"
    write_keys(
        keys, "one", "two", "chief", "scraper",
        two='models = ["else"]', chief="admin = true", scraper="metrics = true",
    )  # fmt: skip
    options = ("--name", "tiny", "--threads", "1", "--api-key-file", str(keys))
    with serving(str(tiny_chat_model), *options) as server:
        assert server.request("POST", "/v1/completions", REQUEST, by_key("one"))[0] == 200
        assert server.request("POST", "/v1/completions", REQUEST, by_key("two"))[0] == 403
        assert server.request("POST", "/v1/completions", REQUEST)[0] == 401
        assert server.request("GET", "/metrics")[0] == 401

        def of(name: str, asking: str) -> dict[str, float]:
            found = samples(server, by_key(asking))[f"tidemill:tenant_{name}_total"]
            return {dict(labels)["tenant"]: value for labels, value in found.items()}

        for asking in ("scraper", "chief"):
            assert of("generation_tokens", asking)["one"] == 5
            assert of("generation_tokens", asking)["two"] == 0
            assert of("prompt_tokens", asking)["one"] > 0
            assert of("refused", asking) | {"one": 0, "two": 1} == of("refused", asking)
            assert of("requests", asking)["two"] == 1
            assert "anybody" not in of("requests", asking)
        assert of("generation_tokens", "one") == {"one": 5}
        assert of("refused", "two") == {"two": 1}

        def models(asking: str) -> set[str]:
            found = samples(server, by_key(asking))
            return {
                dict(labels).get("model_name", "") for each in found.values() for labels in each
            }

        assert models("one") == models("scraper") == {"tiny", ""}
        assert models("two") == {""}
        two = server.request("GET", "/metrics", headers=by_key("two"))[2].decode()
        assert not [name for name in ("one", "chief", "scraper", "tiny") if f'"{name}"' in two]
        assert server.request("POST", "/admin/models/tiny/unload", {}, by_key("scraper"))[0] == 403


def test_energy_is_there_where_a_meter_is(tmp_path: Path) -> None:
    zone = tmp_path / "sys/class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("energy_uj", "5"), ("max_energy_range_uj", "9999")):
        (zone / name).write_text(text)
    text = Metrics(Models([]), EnergyMeters(tmp_path)).text
    assert b'tidemill:energy_joules_total{meter="package-0"} 0.0' in text(ANYBODY)
    (zone / "energy_uj").write_text("2500005")
    assert b'tidemill:energy_joules_total{meter="package-0"} 2.5' in text(ANYBODY)
    assert b"energy" not in Metrics(Models([]), EnergyMeters(tmp_path / "none")).text(ANYBODY)
