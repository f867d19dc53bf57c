// wllama by its own interface. It computes in a worker of its own.

import { Wllama } from "/node_modules/@wllama/wllama/esm/index.js";

let wllama;

export async function load({ file, threads, gpu }) {
  wllama = new Wllama({ default: "/node_modules/@wllama/wllama/esm/wasm/wllama.wasm" }, { suppressNativeLog: true });
  if (gpu && !wllama.isSupportWebGPU()) {
    throw new Error("wllama finds no WebGPU that it can use in this browser");
  }
  const model = new URL(file, location.href).href;
  await wllama.loadModelFromUrl(model, { n_threads: threads, n_gpu_layers: gpu ? undefined : 0, n_ctx: 1024 });
  return { threads: wllama.getNumThreads(), multithread: wllama.isMultithread() };
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
  const { cache_n: cached = 0, prompt_n: computed } = said.timings ?? {};
  return { prompt_tokens: said.usage?.prompt_tokens ?? cached + computed, cached, times, text, own: said.timings };
}
