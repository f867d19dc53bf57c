// transformers.js by its own interface: the page's half of a worker, as its documentation has it, so that nothing waits for
// the page.

const worker = new Worker("./transformers.worker.js", { type: "module" });

/** Asks the worker and gives its answer, or throws what it threw. */
function ask(what, words) {
  return new Promise((done, failed) => {
    worker.onmessage = ({ data: { error, ...answer } }) => (error ? failed(new Error(error)) : done(answer));
    worker.onerror = ({ message }) => failed(new Error(message || "the worker's script did not load"));
    worker.postMessage({ what, words });
  });
}

export const load = (settings) => ask("load", [settings]);
export const answer = (prompt, tokens) => ask("answer", [prompt, tokens]);
