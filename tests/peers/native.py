"""Measures one engine that runs the default model natively, once, in a process of its own.

    python native.py NAME TOKENS THREADS

prints one line a figure, NAME=VALUE, times in milliseconds:

    prompt_tokens, prefill       one prompt of 64 tokens, from its handing over to the first token of the answer
    tokens, decode               one answer: its tokens, and the time from the first to the last
    together_tokens, together    eight answers to eight prompts side by side: the tokens that came while all eight were
                                 under way, and that time
    answers                      the ids of the eight answers, `1,2,3/4,5,6/...`
    version, backend             what was measured, on what

What cannot be measured prints `failed=` and a sentence. Loading and warming up are in no figure; of several runs of one
prompt the middle one counts. FIRSTLIGHT_MODEL_FILE is the model, FIRSTLIGHT_BINARY the program `firstlight`,
FIRSTLIGHT_PEERS_SOURCE the unpacked source of llama-cpp-python, FIRSTLIGHT_PEERS_BUILD the folder in which its llama.cpp was
built and FIRSTLIGHT_PEERS_VERSION what that is called. Invariant: every engine computes the same prompts, the same number of tokens, and takes the likeliest token.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
PROMPT_TOKENS = 64
TOGETHER = 8
WARM_UP_TOKENS = 3
#: What each of eight is given to warm up with.
WARM_UP_PROMPT = 8
#: Prompts that are answered alone, one after the other.
ALONE = 3
#: Slower than this, in seconds a token, an engine is asked for less: it would take minutes, and its figures spread little.
SLOW = 0.2
SLOW_TOKENS = 8


def prompts():
    """The eight prompts, and one to warm up with."""
    rows = json.loads((HERE / "prompts.json").read_text(encoding="utf-8"))
    ids = [row["ids"][:PROMPT_TOKENS] for row in rows]
    assert all(len(prompt) == PROMPT_TOKENS for prompt in ids)
    return ids[:TOGETHER], ids[TOGETHER]


def environment(name):
    value = os.environ.get(name)
    if not value:
        raise SystemExit(f"failed={name} is not set; run `cargo xtask peers`")
    return value


def take_cpu_driver(sentence):
    """Begins again with the first device that there is: llama.cpp passes over drivers that run on the CPU unless told."""
    if "GGML_VK_VISIBLE_DEVICES" in os.environ:
        raise RuntimeError(sentence)
    os.environ["GGML_VK_VISIBLE_DEVICES"] = "0"
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.argv])


class Answers:
    """Answers to prompts that were handed over at once: ids, and the instant of every token, in seconds."""

    def __init__(self, start, ids, instants):
        self.start, self.ids, self.instants = start, ids, instants

    def prefill(self):
        return self.instants[0][0] - self.start

    def rest(self):
        """The tokens that came while all were under way, and how long that was."""
        first = max(instants[0] for instants in self.instants)
        last = min(instants[-1] for instants in self.instants)
        tokens = sum(first < at <= last for instants in self.instants for at in instants)
        return tokens, last - first


class Firstlight:
    """Ours, by its own command line and its own timelines."""

    #: A process each time, which warms up by itself before its timelines begin.
    stays = False

    def __init__(self, _threads):
        self.binary = environment("FIRSTLIGHT_BINARY")
        self.lines = []

    def answer(self, prompts, tokens):
        command = [self.binary, "run", "--json", "--ignore-eos", "--temperature", "0", "--max-tokens", str(tokens)]
        for prompt in prompts:
            command += ["--ids", ",".join(map(str, prompt))]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        self.lines = done.stderr.splitlines()
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        timelines = [answer["timeline"] for answer in answers]
        assert all(timeline["tokens"]["cached"] == 0 for timeline in timelines), "a prompt came from the cache"
        start = min(timeline["stamps"]["created"] for timeline in timelines)
        instants = [[at / 1e9 for at in timeline["token_at"]] for timeline in timelines]
        return Answers(start / 1e9, [answer["token_ids"] for answer in answers], instants)

    def told(self):
        version = subprocess.run([self.binary, "--version"], capture_output=True, text=True, check=True).stdout
        adapter = next((found[1] for line in self.lines if (found := re.search(r" on (.+?): ", line))), "adapter unknown")
        return {"version": version.split()[-1], "backend": adapter}


class Llama:
    """llama.cpp by the bindings of llama-cpp-python: one call of llama_decode a step, all sequences in one batch."""

    stays = True

    def __init__(self, threads, gpu):
        self.threads, self.gpu = threads, gpu
        source, build = environment("FIRSTLIGHT_PEERS_SOURCE"), environment("FIRSTLIGHT_PEERS_BUILD")
        os.environ["LLAMA_CPP_LIB_PATH"] = str(Path(build) / "bin")
        sys.path.insert(0, source)
        import numpy
        from llama_cpp import __version__, llama_cpp

        self.numpy, self.api, self.version = numpy, llama_cpp, __version__
        self.log = []
        # It must live as long as the library may call it.
        self.hear = llama_cpp.llama_log_callback(lambda _level, text, _data: self.log.append(text.decode(errors="replace")))
        llama_cpp.llama_log_set(self.hear, None)
        llama_cpp.llama_backend_init()
        self.load(environment("FIRSTLIGHT_MODEL_FILE"))
        self.batch = llama_cpp.llama_batch_init(TOGETHER * PROMPT_TOKENS, 0, 1)
        self.check_prompts()

    def load(self, file):
        api = self.api
        settings = api.llama_model_default_params()
        settings.n_gpu_layers = 999 if self.gpu else 0
        self.model = api.llama_model_load_from_file(file.encode(), settings)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load the model: {self.last_words()}")
        if self.gpu and not any(re.search(r"Vulkan\d* model buffer size", line) for line in self.log):
            take_cpu_driver("llama.cpp put no weights on a Vulkan device")
        settings = api.llama_context_default_params()
        settings.n_ctx = TOGETHER * 256
        settings.n_batch = settings.n_ubatch = TOGETHER * PROMPT_TOKENS
        settings.n_seq_max = TOGETHER
        settings.n_threads = settings.n_threads_batch = self.threads
        self.context = api.llama_init_from_model(self.model, settings)
        if not self.context:
            raise RuntimeError(f"llama.cpp makes no context: {self.last_words()}")
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))

    def last_words(self):
        return "".join(self.log[-3:]).strip().replace("\n", "; ")

    def check_prompts(self):
        """Its own tokenizer makes the same ids of the prompts' texts."""
        api = self.api
        for row in json.loads((HERE / "prompts.json").read_text(encoding="utf-8")):
            text, room = row["text"].encode(), 256
            ids = (api.llama_token * room)()
            count = api.llama_tokenize(api.llama_model_get_vocab(self.model), text, len(text), ids, room, False, False)
            if list(ids[:count]) != row["ids"]:
                raise RuntimeError("llama.cpp makes other token ids of a prompt than tests/peers/prompts.json has")

    def step(self, rows):
        """Computes (token, position, sequence, whether its logits are wanted); the likeliest token of each wanted one."""
        api, batch = self.api, self.batch
        batch.n_tokens = len(rows)
        for at, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[at], batch.pos[at], batch.logits[at] = token, position, wanted
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
        if (code := api.llama_decode(self.context, batch)) != 0:
            raise RuntimeError(f"llama_decode answered {code}: {self.last_words()}")
        wanted = [at for at, row in enumerate(rows) if row[3]]
        array = self.numpy.ctypeslib.as_array
        return [int(array(api.llama_get_logits_ith(self.context, at), (self.vocab,)).argmax()) for at in wanted]

    def answer(self, prompts, tokens):
        api = self.api
        api.llama_memory_clear(api.llama_get_memory(self.context), True)
        rows = [
            (token, position, sequence, position + 1 == len(prompt))
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        start = time.perf_counter()
        steps = [self.step(rows)]
        instants = [time.perf_counter()]
        length = len(prompts[0])
        for position in range(length, length + tokens - 1):
            rows = [(token, position, sequence, True) for sequence, token in enumerate(steps[-1])]
            steps.append(self.step(rows))
            instants.append(time.perf_counter())
        return Answers(start, [list(ids) for ids in zip(*steps)], [instants] * len(prompts))

    def told(self):
        where = f"CPU, {self.threads} threads"
        if self.gpu:
            device = next((found[1] for line in self.log if (found := re.search(r"using device Vulkan\d* \((.+?)\) \(", line))), "")
            where = f"Vulkan: {device or 'device unknown'}"
        return {"version": environment("FIRSTLIGHT_PEERS_VERSION"), "backend": where}


class Transformers:
    """HuggingFace's transformers in f32 on the CPU: `generate`, the weights out of the same GGUF."""

    stays = True

    def __init__(self, threads):
        os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
        import torch
        import transformers

        self.torch, self.transformers, self.threads = torch, transformers, threads
        torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        file = Path(environment("FIRSTLIGHT_MODEL_FILE"))
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.model = load(str(file.parent), gguf_file=file.name, dtype=torch.float32).eval()

    def answer(self, prompts, tokens):
        instants = []

        class Stamps(self.transformers.LogitsProcessor):
            """Is called with the logits of every step."""

            def __call__(self, _ids, scores):
                instants.append(time.perf_counter())
                return scores

        with self.torch.inference_mode():
            ids = self.torch.tensor(prompts)
            asked = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
            start = time.perf_counter()
            out = self.model.generate(
                ids, attention_mask=self.torch.ones_like(ids), logits_processor=[Stamps()], pad_token_id=0, **asked
            )
        return Answers(start, out[:, ids.shape[1] :].tolist(), [instants] * len(prompts))

    def told(self):
        version = f"{self.transformers.__version__}, torch {self.torch.__version__.split('+')[0]}"
        return {"version": version, "backend": f"CPU, {self.threads} threads"}


ENGINES = {
    "firstlight": Firstlight,
    "llama.cpp-cpu": lambda threads: Llama(threads, gpu=False),
    "llama.cpp-vulkan": lambda threads: Llama(threads, gpu=True),
    "transformers-cpu": Transformers,
}


def measure(engine, tokens):
    several, other = prompts()
    if engine.stays:
        engine.answer([other], WARM_UP_TOKENS)
        engine.answer([other[:WARM_UP_PROMPT]] * TOGETHER, WARM_UP_TOKENS)
    count, took = engine.answer([other], WARM_UP_TOKENS).rest()
    alone = ALONE
    if took / count > SLOW:
        tokens, alone = min(tokens, SLOW_TOKENS), 1
    answers = [engine.answer([prompt], tokens) for prompt in several[:alone]]
    together = engine.answer(several, tokens)
    shared, span = together.rest()
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "prefill": median(answer.prefill() for answer in answers) * 1e3,
        "tokens": tokens,
        "decode": median(answer.rest()[1] for answer in answers) * 1e3,
        "together_tokens": shared,
        "together": span * 1e3,
        "answers": "/".join(",".join(map(str, ids)) for ids in together.ids),
        **engine.told(),
    }


def main(name, tokens, threads):
    try:
        figures = measure(ENGINES[name](threads), tokens)
    except Exception as error:  # Whatever an engine throws is its row's reason.
        sentence = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        figures = {"failed": sentence}
    for key, value in figures.items():
        print(f"{key}={value:.4f}" if isinstance(value, float) else f"{key}={value}")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ENGINES:
        raise SystemExit(f"{__doc__}\nNAME is one of {', '.join(ENGINES)}")
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
