"""Predictions of `roofline` for prompts and for several machines: their rows and tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from firesteel.cli.tables import new_table
from firesteel.measure.roofline.nodes import NodesPrediction
from firesteel.measure.roofline.prompts import PromptPrediction, predict_prompts, prompt_assumptions
from firesteel.measure.roofline.roofline import StepShape
from firesteel.model.spec import ModelSpec


def predict_prompt_rows(
    spec: ModelSpec,
    step: StepShape,
    gpu: str,
    model: str,
    lengths: Sequence[int],
    *,
    step_tokens: int,
    share: float,
    matrix_share: float,
) -> tuple[list[PromptPrediction], list[str]]:
    """Returns the predictions and their assumptions; both are empty without lengths or a known matrix rate."""
    if not lengths:
        return [], []
    predictions = predict_prompts(
        spec,
        step,
        gpu,
        model=model,
        lengths=lengths,
        step_tokens=step_tokens,
        memory_share=share,
        matrix_share=matrix_share,
    )
    assumed = prompt_assumptions(gpu, model, step_tokens=step_tokens, memory_share=share, matrix_share=matrix_share)
    return predictions, assumed


def prompt_table(predictions: Sequence[PromptPrediction], title: str) -> Table:
    table = new_table(
        "prompt tokens", "activations", "memory ms", "matrix ms", "ms", "tok/s", "ceiling", "published", "status"
    )
    table.title = f"prompts, one at a time, on {title}"
    for prediction in predictions:
        published = prediction.published_tok_s
        table.add_row(
            str(prediction.tokens),
            prediction.activation,
            f"{prediction.memory_ms:.0f}",
            f"{prediction.matrix_ms:.0f}",
            f"{prediction.predicted_ms:.0f}",
            f"{prediction.predicted_tok_s:.0f}",
            f"{prediction.ceiling_tok_s:.0f}",
            "" if published is None else f"{published:.0f}",
            prediction.status,
        )
    return table


def nodes_table(prediction: NodesPrediction, title: str) -> Table:
    table = new_table("nodes", "reading ms", "link ms", "ms per step", "tok/s", "over one node", "status")
    table.title = f"every layer split over {prediction.nodes} x {title}, all requests together"
    table.add_row(
        str(prediction.nodes),
        f"{prediction.read_ms:.2f}",
        f"{prediction.link_ms:.2f}",
        f"{prediction.step_ms:.2f}",
        f"{prediction.predicted_tok_s:.1f}",
        f"{prediction.speedup:.2f} x",
        prediction.status,
    )
    return table
