// Loads a model with transformers.js and answers with it, telling when each token came.

import { AutoModelForCausalLM, AutoTokenizer, env, TextStreamer } from "/node_modules/@huggingface/transformers/dist/transformers.min.js";

let model;
let tokenizer;

const does = {
  async load({ device, dtype, threads }) {
    env.allowRemoteModels = false;
    env.allowLocalModels = true;
    env.localModelPath = "/";
    const { wasm } = env.backends.onnx;
    // The build that it takes from a CDN by itself, from here.
    wasm.wasmPaths = { mjs: `${location.origin}/ort.js`, wasm: `${location.origin}/ort.wasm` };
    wasm.numThreads = threads;
    tokenizer = await AutoTokenizer.from_pretrained("model");
    model = await AutoModelForCausalLM.from_pretrained("model", { device, dtype });
    return { threads: device === "wasm" ? (globalThis.crossOriginIsolated ? threads : 1) : 0 };
  },

  async answer(prompt, tokens) {
    const times = [];
    const start = performance.now();
    const inputs = tokenizer(prompt, { add_special_tokens: false });
    const streamer = new TextStreamer(tokenizer, {
      skip_prompt: true,
      callback_function: () => {},
      token_callback_function: () => times.push(performance.now() - start),
    });
    const asked = { max_new_tokens: tokens, min_new_tokens: tokens, do_sample: false, streamer };
    const ids = await model.generate({ ...inputs, ...asked });
    const length = inputs.input_ids.dims.at(-1);
    const text = tokenizer.decode(ids.slice(null, [length, null]).tolist()[0], { skip_special_tokens: false });
    return { prompt_tokens: length, times, text };
  },
};

globalThis.onmessage = async ({ data: { what, words } }) => {
  try {
    globalThis.postMessage(await does[what](...words));
  } catch (error) {
    // WebAssembly throws numbers too.
    globalThis.postMessage({ error: String(error?.message ?? error) });
  }
};
