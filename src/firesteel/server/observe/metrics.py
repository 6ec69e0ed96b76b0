"""Metrics for Prometheus: the names of vLLM's dashboards, and our own.

Counters are kept here, not in the engine, so that they do not fall when the engine is restarted.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from firesteel.engine.statistics import Statistics
from firesteel.server.generate.choice import Choice
from firesteel.server.observe.drafts import DraftMetrics

SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
)
TOKEN_SECONDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
GAUGES = {
    "vllm:num_requests_running": ("requests_running", "Running requests"),
    "vllm:num_requests_waiting": ("requests_waiting", "Waiting requests"),
    "firesteel_pages": ("pages", "Pages of the KV cache"),
    "firesteel_pages_held": ("pages_held", "Pages held by requests"),
    "firesteel_pages_idle": ("pages_idle", "Pages held by no request, kept for prompts with the same prefix"),
    "firesteel_kv_cache_bytes": ("cache_bytes", "Size of the KV cache in bytes"),
    "firesteel_engine_steps": ("steps", "Steps of the current engine"),
    "firesteel_engine_preemptions": ("preemptions", "Preemptions by the current engine"),
    "firesteel_engine_page_evictions": ("page_evictions", "Cached pages evicted by the current engine"),
    "firesteel_engine_saturated_values": ("saturated_values", "Keys and values clipped to the range of FP8"),
    "firesteel_engine_graphs": ("graphs", "Decoding steps made, captured on a GPU"),
    "firesteel_engine_graph_bytes": ("graph_bytes", "GPU memory of decoding steps in bytes"),
    "firesteel_engine_prompt_graphs": ("prompt_graphs", "Prompt steps made, captured on a GPU"),
    "firesteel_engine_prompt_graph_bytes": ("prompt_graph_bytes", "GPU memory of prompt steps in bytes"),
    "firesteel_engine_draft_graphs": ("draft_graphs", "Drafting steps made, captured on a GPU"),
    "firesteel_engine_draft_graph_bytes": ("draft_graph_bytes", "GPU memory of drafting steps in bytes"),
    "firesteel_engine_prompt_tokens_beside_decoding": (
        "prompt_tokens_beside_decoding",
        "Limit of prompt tokens in a step beside a decoding request; 0 = no limit",
    ),
    "firesteel_engine_experts_in_fp8": (
        "experts_in_fp8",
        "Experts of prompts that FP8 kernels compute; 0 without these",
    ),
    "firesteel_engine_experts_in_bf16": (
        "experts_in_bf16",
        "Experts that FP8 kernels leave to bf16 ones, because E4M3 cannot represent a row",
    ),
    "firesteel_engine_late_compilations": (
        "late_compilations",
        "Kernels compiled or loaded while requests were served",
    ),
    "firesteel_engine_late_captures": ("late_captures", "Steps made while requests were served"),
}
STAGES = ("schedule", "build", "run", "wait")


class Metrics:
    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model_name
        self._gauges = {name: self._gauge(name, text) for name, (_, text) in GAUGES.items()}
        self._cache_use = self._gauge("vllm:kv_cache_usage_perc", "Share of pages held by requests, 0 to 1")
        self._engine_up = self._gauge("firesteel_engine_up", "1 while an engine is ready")
        self._deaths = self._gauge("firesteel_engine_deaths", "Engines that died")
        self._under_way = self._gauge("firesteel_requests_under_way", "Choices admitted and not yet answered")
        self._stages = Gauge(
            "firesteel_engine_stage_seconds",
            "Seconds of the current engine by stage",
            ["model_name", "stage"],
            registry=self.registry,
        )
        self._prompt_steps = Gauge(
            "firesteel_engine_prompt_steps",
            "Steps with prompts: replayed, or run op by op, with the reason",
            ["model_name", "way"],
            registry=self.registry,
        )
        self._draft_steps = Gauge(
            "firesteel_engine_draft_steps",
            "Times that a draft network was replayed, or ran op by op, with the reason",
            ["model_name", "way"],
            registry=self.registry,
        )
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens")
        self._output_tokens = self._counter("vllm:generation_tokens", "Generated tokens")
        self._cache_queries = self._counter("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache")
        self._cache_hits = self._counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache")
        self._preemptions = self._counter("vllm:num_preemptions", "Preemptions of requests by older ones")
        self._finished = Counter(
            "vllm:request_success",
            "Finished choices",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self._answers = Counter(
            "firesteel_http_requests",
            "Requests by path and status; 499 is a client that left",
            ["path", "status"],
            registry=self.registry,
        )
        self._stopped_trials = Counter(
            "firesteel_schema_compilations_stopped",
            "Compilations of clients' schemas that were ended: by a limit, a crash, or because the client left",
            ["model_name", "reason"],
            registry=self.registry,
        )
        self._first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "Seconds to the first token", SECONDS
        )
        self._token = self._histogram(
            "vllm:time_per_output_token_seconds", "Mean seconds per token after the first", TOKEN_SECONDS
        )
        self._inter_token = self._histogram(
            "vllm:inter_token_latency_seconds", "Mean seconds between tokens", TOKEN_SECONDS
        )
        self._queue = self._histogram("vllm:request_queue_time_seconds", "Seconds to the first step", SECONDS)
        self._whole = self._histogram(
            "vllm:e2e_request_latency_seconds", "Seconds from arrival to the end", SECONDS
        )
        self._prompt = self._histogram("vllm:request_prompt_tokens", "Prompt tokens per choice", TOKENS)
        self._output = self._histogram("vllm:request_generation_tokens", "Generated tokens per choice", TOKENS)

        self._drafts = DraftMetrics(self.registry, model_name)

    def count_answer(self, path: str, status: int) -> None:
        self._answers.labels(path, str(status)).inc()

    def count_stopped_trial(self, reason: str) -> None:
        self._stopped_trials.labels(self._model, reason).inc()

    def count_tokens(self, count: int) -> None:
        """Counts tokens of unfinished choices too, so that rates are current."""
        self._output_tokens.inc(count)

    def count_choice(self, choice: Choice, seconds: float) -> None:
        """Counts a choice that has ended, by itself or because its client left."""
        self._prompt_tokens.inc(choice.num_prompt)
        self._cache_queries.inc(choice.num_prompt)
        self._cache_hits.inc(choice.num_cached)
        self._finished.labels(self._model, choice.finish_reason or "abort").inc()
        self._prompt.observe(choice.num_prompt)
        self._output.observe(choice.num_output)
        self._whole.observe(seconds)
        statistics = choice.statistics
        if statistics is not None:
            self._queue.observe(statistics.queue_s)
            self._first_token.observe(statistics.first_token_s)
            self._preemptions.inc(statistics.preemptions)
            if statistics.output_tokens > 1:
                self._token.observe(statistics.token_s)
                self._inter_token.observe(statistics.token_s)

    def render(self, statistics: Statistics | None, *, num_deaths: int, num_under_way: int) -> bytes:
        """Returns the exposition text. `statistics` is None while no engine runs: gauges are then 0.

        `num_deaths` is that of the time when the statistics were asked for.
        """
        self._drafts.update(statistics, num_deaths=num_deaths)
        now = Statistics() if statistics is None else statistics
        for name, gauge in self._gauges.items():
            gauge.set(getattr(now, GAUGES[name][0]))
        for stage in STAGES:
            self._stages.labels(self._model, stage).set(getattr(now, f"{stage}_s"))
        for way, count in now.prompt_steps().items():
            self._prompt_steps.labels(self._model, way.replace(" ", "_")).set(count)
        for way, count in now.draft_steps().items():
            self._draft_steps.labels(self._model, way.replace(" ", "_")).set(count)
        self._cache_use.set(now.pages_held / now.pages if now.pages else 0.0)
        self._engine_up.set(statistics is not None)
        self._deaths.set(num_deaths)
        self._under_way.set(num_under_way)
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["model_name"], registry=self.registry).labels(self._model)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name"], registry=self.registry).labels(self._model)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, ["model_name"], registry=self.registry, buckets=buckets)
        return histogram.labels(self._model)
