"""Scoring given text with OpenVINO GenAI: log-probabilities of a prompt's own tokens."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from personae.models.local.template import render
from personae.models.local.worker import RequestError

# The tokenizer cuts at the model's context when not told otherwise, and says nothing.
_NO_CUT = 1 << 30

Answer = Callable[[dict[str, Any]], None]


class Scorer:
    """Runs in the worker process; one thread owns the pipeline and keeps its batch full.

    Args:
        config: `path` (GGUF of types F16, F32 and Q8_0 only), `context`, `batch`, `header`
            (template, bos, eos).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._inbox: queue.SimpleQueue[tuple[dict[str, Any], Answer]] = queue.SimpleQueue()
        self._dropped: set[int] = set()
        self._unsupported: str | None = None
        try:
            self._load()
        except RuntimeError as error:
            # OpenVINO reads few architectures; the sampler may well know this one.
            self._unsupported = str(error).strip().splitlines()[-1][:300]
        self.info = {"unsupported": self._unsupported}
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, request: dict[str, Any], answer: Answer) -> None:
        """See `worker.Engine`."""
        self._inbox.put((request, answer))

    def cancel(self, number: int) -> None:
        """Drop a request that has not begun."""
        self._dropped.add(number)

    def _load(self) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        scheduler.max_num_seqs = self._config["batch"]
        scheduler.max_num_batched_tokens = 512
        # With it on, an echo tells only the tokens that were not in the cache.
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            self._config["path"], scheduler, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )
        self._tokenizer = self._pipeline.get_tokenizer()

    def _work(self) -> None:
        running: dict[int, tuple[Any, list[int], int, Answer]] = {}
        number = 0
        while True:
            while len(running) < self._config["batch"]:
                try:
                    request, answer = self._inbox.get(block=not running)
                except queue.Empty:
                    break
                if request["id"] in self._dropped:
                    self._dropped.discard(request["id"])
                    continue
                number += 1
                try:
                    running[number] = (*self._begin(number, request), answer)
                except Exception as error:  # noqa: BLE001  its caller must hear of it
                    answer(_failed(error))
            try:
                self._pipeline.step()
            except Exception as error:  # noqa: BLE001  all that ran fails, none is left waiting
                for *_, answer in running.values():
                    answer(_failed(error))
                running.clear()
                continue
            for key, (handle, ids, begin, answer) in list(running.items()):
                if _finished(handle):
                    del running[key]
                    try:
                        answer({"ok": self._told(handle, ids, begin)})
                    except Exception as error:  # noqa: BLE001
                        answer(_failed(error))

    def _begin(self, number: int, request: dict[str, Any]) -> tuple[Any, list[int], int]:
        if self._unsupported is not None:
            raise RequestError(
                "unsupported",
                f"log-probabilities of given text cannot be had from these weights: "
                f"{self._unsupported}",
            )
        import numpy as np
        import openvino
        import openvino_genai

        header = self._config["header"]
        *before, last = request["messages"]
        prompt = render(header["template"], before, bos=header["bos"], eos=header["eos"])
        given = self._ids(prompt)
        ids = given + self._ids(last["content"])
        if len(ids) == len(given):
            raise RequestError("bad_request", "the assistant's message is empty: nothing to score")
        if len(ids) + 1 > self._config["context"]:
            raise RequestError(
                "context_length",
                f"prompt and message have {len(ids)} tokens, the model's context "
                f"{self._config['context']}",
            )
        wish = openvino_genai.GenerationConfig()
        wish.max_new_tokens = 1
        wish.echo = True
        wish.logprobs = 1
        wish.do_sample = False
        tokens = openvino.Tensor(np.asarray([ids], dtype=np.int64))
        return self._pipeline.add_request(number, tokens, wish), ids, len(given)

    def _ids(self, text: str) -> list[int]:
        encoded = self._tokenizer.encode(text, add_special_tokens=False, max_length=_NO_CUT)
        return [int(n) for n in encoded.input_ids.data[0]]

    def _told(self, handle: Any, ids: list[int], begin: int) -> dict[str, Any]:
        (output,) = handle.read_all()
        told = list(output.generated_ids)[: len(ids)]
        values = list(output.generated_log_probs)[begin : len(ids)]
        if told != ids or len(values) != len(ids) - begin:
            raise RequestError("server", "the engine echoed other tokens than it was given")
        texts = [self._tokenizer.decode([n], skip_special_tokens=False) for n in ids[begin:]]
        return {
            "tokens": list(zip(texts, (float(v) for v in values), strict=True)),
            "tokens_in": len(ids),
        }


def _finished(handle: Any) -> bool:
    import openvino_genai

    return bool(handle.get_status() != openvino_genai.GenerationStatus.RUNNING)


def _failed(error: Exception) -> dict[str, Any]:
    from personae.errors import UnsupportedError

    if isinstance(error, RequestError):
        kind = error.kind
    else:
        kind = "unsupported" if isinstance(error, UnsupportedError) else "server"
    return {"error": {"kind": kind, "message": str(error) or type(error).__name__}}
