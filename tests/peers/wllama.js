// wllama by its own interface. It computes in a worker of its own.

import { Wllama } from "/node_modules/@wllama/wllama/esm/index.js";

let wllama;

export async function load({ file, threads, gpu }) {
  const lines = [];
  const hear = (...words) => lines.push(words.join(" "));
  const logger = { debug: hear, log: hear, warn: hear, error: hear };
  wllama = new Wllama({ default: "/node_modules/@wllama/wllama/esm/wasm/wllama.wasm" }, { suppressNativeLog: !gpu, logger });
  const model = new URL(file, location.href).href;
  await wllama.loadModelFromUrl(model, { n_threads: threads, n_gpu_layers: gpu ? undefined : 0, n_ctx: 1024 });
  // It falls back on the processor in silence; only llama.cpp's log tells where the weights went.
  if (gpu && !lines.some((line) => /WebGPU\S* +model buffer size/.test(line))) {
    const adapter = await navigator.gpu?.requestAdapter();
    const f16 = adapter?.features.has("shader-f16") ? "has" : "lacks";
    const found = adapter ? `this browser's adapter, which ${f16} shader-f16` : "this browser, which has no adapter";
    throw new Error(`it found no WebGPU that it can use in ${found}, and went on with the processor alone, in silence`);
  }
  return { threads: wllama.getNumThreads() };
}

export async function answer(prompt, tokens) {
  const times = [];
  let [text, said] = ["", {}];
  const start = performance.now();
  const asked = { prompt, max_tokens: tokens, temperature: 0, ignore_eos: true };
  await wllama.createCompletion({
    ...asked,
    stream: true,
    onData: ({ choices, usage, timings }) => {
      // The last piece brings figures instead of a token.
      if (choices?.[0] && !choices[0].finish_reason) {
        times.push(performance.now() - start);
      }
      text += choices?.[0]?.text ?? "";
      said = { usage: usage ?? said.usage, timings: timings ?? said.timings };
    },
  });
  // A token is told while the next one is computed, and the last two at once: from first to last by its own clock.
  const { cache_n: cached = 0, prompt_n: computed, predicted_ms: own_rest } = said.timings ?? {};
  if (cached > 4) {
    throw new Error(`${cached} tokens of the prompt came from its cache`);
  }
  return { prompt_tokens: said.usage?.prompt_tokens ?? cached + computed, times, text, own_rest };
}
