"""The embedded model's engine beside its rivals, idle and with another program on one core.

    python benchmarks/local_engine.py [--rounds N] [--tokens N]

Generation: `LocalModel` as the product uses it (llama.cpp in a child process, 1000 turns of spinning
at a barrier) against llama.cpp as it comes (it spins for good), against one llama.cpp process per
core, and against OpenVINO GenAI. Judged calls: four groups of six prompts that share 94 % of 1,240
tokens, under the schema of a verdict, through `LocalModel` only, and the share that its cache held.
Scoring: `LocalModel` (OpenVINO GenAI) against the rate at which
llama.cpp reads a prompt, which is the most it could reach if it gave log-probabilities at all.
All in one run, in turn, round by round, so that a noisy machine is noisy for all; medians.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from personae.models.local import LocalModel, pull
from personae.records import Call, Message, ReplySchema, Sampling

CHOSEN = "personae (llama.cpp, spin 1000)"
RIVALS = {  # name: (contender, processes, threads, environment)
    "llama.cpp, passive waiting": ("llama", 1, 2, {"OMP_WAIT_POLICY": "passive"}),
    "llama.cpp, spin 20000": ("llama", 1, 2, {"GOMP_SPINCOUNT": "20000"}),
    "llama.cpp, as it comes": ("llama", 1, 2, {}),
    "llama.cpp, 2 processes x 1 thread": ("llama", 2, 1, {}),
    "OpenVINO GenAI": ("openvino", 1, 2, {}),
}
PROMPT = "Tell me story number {} about a sailor."
SCORED = "The sea was calm that night and the captain told us of his youth in the islands. " * 4

JUDGED_GROUPS, JUDGED_CASES = 4, 6
VERDICT = ReplySchema(
    name="verdict",
    body={
        "type": "object",
        "properties": {
            "justification": {"type": "string", "maxLength": 60},
            "score": {"type": "integer", "minimum": 1, "maximum": 5},
        },
        "required": ["justification", "score"],
        "additionalProperties": False,
    },
)
WORDS = [
    "sea",
    "captain",
    "gold",
    "island",
    "storm",
    "sail",
    "night",
    "ship",
    "anchor",
    "rope",
    "wind",
    "harbour",
    "crew",
    "map",
]


def _words(seed: object, count: int) -> str:
    return " ".join(random.Random(str(seed)).choices(WORDS, k=count))


def _serve_llama(path: str, threads: int, tokens: int) -> None:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx, parameters.n_parallel = 8192, 8
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(parameters)

    def one(number: int, done: list[int], limit: int = tokens) -> None:
        found = server.handle_chat_completions(
            {
                "messages": [{"role": "user", "content": PROMPT.format(number)}],
                "max_tokens": limit, "temperature": 0.9, "top_p": 0.9, "top_k": 0, "min_p": 0.0,
                "seed": number, "ignore_eos": True,
            }
        )  # fmt: skip
        done.append(found["usage"]["completion_tokens"])

    def read(words: str) -> int:
        found = server.handle_completions({"prompt": words, "n_predict": 1, "cache_prompt": False})
        return int(found["usage"]["prompt_tokens"])

    one(0, [], 4)
    _answer(one, read)


def _serve_openvino(path: str, tokens: int) -> None:
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs = 1, 16
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        path, scheduler, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    tokenizer = pipeline.get_tokenizer()

    def many(count: int, limit: int = tokens) -> int:
        handles = []
        for number in range(count):
            wish = openvino_genai.GenerationConfig()
            wish.max_new_tokens, wish.do_sample, wish.ignore_eos = limit, True, True
            wish.temperature, wish.top_p, wish.rng_seed = 0.9, 0.9, number
            said = [{"role": "user", "content": PROMPT.format(number)}]
            prompt = tokenizer.apply_chat_template(said, add_generation_prompt=True)
            handles.append(pipeline.add_request(number, prompt, wish))
        while pipeline.has_non_finished_requests():
            pipeline.step()
        return sum(len(o.generated_ids) for h in handles for o in h.read_all())

    many(1, 4)
    os.write(3, b"ready\n")
    for line in sys.stdin:
        os.write(3, b"%d\n" % many(int(line)))


def _answer(one, read) -> None:
    os.write(3, b"ready\n")
    for line in sys.stdin:
        if line.startswith("read"):
            os.write(3, b"%d\n" % sum(read(f"{n} " + SCORED * 4) for n in range(4)))
            continue
        done: list[int] = []
        threads = [threading.Thread(target=one, args=(n, done)) for n in range(int(line))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.write(3, b"%d\n" % sum(done))


class Rival:
    def __init__(self, path: Path, tokens: int, kind: str, count: int, threads: int, env) -> None:
        self._all = []
        for _ in range(count):
            reading, writing = os.pipe()
            command = [
                sys.executable,
                __file__,
                "--serve",
                kind,
                str(path),
                str(threads),
                str(tokens),
            ]
            process = subprocess.Popen(
                ["bash", "-c", 'exec "$@" 3>&1 1>/dev/null 2>&1', "bash", *command],
                stdin=subprocess.PIPE, stdout=writing, env={**os.environ, **env}, text=True,
            )  # fmt: skip
            os.close(writing)
            self._all.append((process, os.fdopen(reading)))
        for _, answers in self._all:
            assert answers.readline() == "ready\n"

    def __call__(self, count: int) -> float:
        shares = [
            count // len(self._all) + (n < count % len(self._all)) for n in range(len(self._all))
        ]
        return self._say([str(share) for share in shares])

    def read(self) -> float:
        return self._say(["read"])

    def _say(self, lines: list[str]) -> float:
        began = time.perf_counter()
        asked = [(p, a, line) for (p, a), line in zip(self._all, lines, strict=True) if line != "0"]
        for process, _, line in asked:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        tokens = sum(int(answers.readline()) for _, answers, _ in asked)
        return tokens / (time.perf_counter() - began)

    def close(self) -> None:
        for process, _ in self._all:
            process.kill()
            process.wait()


class Chosen:
    def __init__(self, tokens: int) -> None:
        self._model, self._tokens, self._drawn = LocalModel("local"), tokens, 0

    async def generate(self, count: int) -> float:
        began = time.perf_counter()
        replies = await asyncio.gather(
            *[self._model.complete(self._call(PROMPT.format(n))) for n in range(count)]
        )
        spent = time.perf_counter() - began
        return sum(r.usage.tokens_out or 0 for r in replies) / spent

    async def score(self) -> float:
        self._drawn += 1
        began = time.perf_counter()
        replies = await asyncio.gather(
            *[
                self._model.complete(self._call(f"{self._drawn} {n} {SCORED * 3}", SCORED))
                for n in range(8)
            ]
        )
        return sum(r.usage.tokens_in or 0 for r in replies) / (time.perf_counter() - began)

    async def judge(self) -> tuple[float, float]:
        """Seconds of wall time, and the share of prompt tokens that the cache held."""
        self._drawn += 1
        calls = [
            Call(
                role="judge",
                model="local",
                messages=(
                    Message(role="system", content="You judge role play."),
                    Message(
                        role="user",
                        content=f"{_words((self._drawn, group), 1130)}\nThe answer to judge: "
                        f"{_words((group, case), 75)}\nGive the verdict.",
                    ),
                ),
                reply_schema=VERDICT,
                sampling=Sampling(temperature=0, max_tokens=40, logprobs=10),
            )
            for group in range(JUDGED_GROUPS)
            for case in range(JUDGED_CASES)
        ]
        began = time.perf_counter()
        replies = await asyncio.gather(*[self._model.complete(call) for call in calls])
        spent = time.perf_counter() - began
        cached = sum(r.usage.cached or 0 for r in replies)
        return spent, cached / sum(r.usage.tokens_in or 0 for r in replies)

    def _call(self, text: str, said: str | None = None) -> Call:
        messages = [Message(role="user", content=text)]
        if said is not None:
            messages.append(Message(role="assistant", content=said))
        self._drawn += 1
        sampling = Sampling(temperature=0.9, top_p=0.9, max_tokens=self._tokens, seed=self._drawn)
        kind = "generate" if said is None else "score"
        return Call(role="x", model="local", messages=tuple(messages), sampling=sampling, kind=kind)

    async def close(self) -> None:
        await self._model.close()


@contextmanager
def another_program(runs: bool):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"])] if runs else []
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


async def main(rounds: int, tokens: int) -> None:
    path = pull("local")
    chosen = Chosen(tokens)
    rivals = {name: Rival(path, tokens, *how) for name, how in RIVALS.items()}
    found: dict[tuple[str, str], list[float]] = {}
    judged: list[tuple[str, float, float]] = []
    try:
        await chosen.generate(1)
        await chosen.score()
        for beside in (False, True):
            where = "one core busy" if beside else "idle"
            with another_program(beside):
                for number in range(rounds):
                    print(
                        f"{'busy' if beside else 'idle'}, round {number + 1} of {rounds}",
                        file=sys.stderr,
                    )
                    for count in (1, 8):
                        what = f"generate, {count} in flight, {where}"
                        found.setdefault((what, CHOSEN), []).append(await chosen.generate(count))
                        for name, rival in rivals.items():
                            found.setdefault((what, name), []).append(rival(count))
                    judged.append((where, *await chosen.judge()))
                    what = f"score given text, {where}"
                    found.setdefault((what, "personae (OpenVINO GenAI)"), []).append(
                        await chosen.score()
                    )
                    found.setdefault((what, "llama.cpp, prompt only"), []).append(
                        rivals["llama.cpp, as it comes"].read()
                    )
    finally:
        await chosen.close()
        for rival in rivals.values():
            rival.close()
    print(f"{os.cpu_count()} cores, load average at the end {os.getloadavg()[0]:.1f}")
    print("| what | engine | tokens/s, median | min to max | chosen = 1 |")
    print("|---|---|---|---|---|")
    for (what, name), rates in found.items():
        base = next(
            statistics.median(v) for (w, n), v in found.items() if w == what and "personae" in n
        )
        middle = statistics.median(rates)
        print(
            f"| {what} | {name} | {middle:.0f} | {min(rates):.0f} to {max(rates):.0f} "
            f"| {middle / base:.2f} |"
        )
    print("| judged calls | where | seconds | prompt tokens cached |")
    print("|---|---|---|---|")
    for where, spent, share in judged:
        print(f"| {JUDGED_GROUPS} x {JUDGED_CASES} | {where} | {spent:.0f} | {share:.0%} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _, _, kind, path, threads, tokens = sys.argv
        if kind == "llama":
            _serve_llama(path, int(threads), int(tokens))
        else:
            _serve_openvino(path, int(tokens))
        os._exit(0)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    chosen = parser.parse_args()
    asyncio.run(main(chosen.rounds, chosen.tokens))
