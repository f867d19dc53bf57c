// Starts the page, and in the worker the engine: both threads run this script, and the page starts the worker with it.

globalThis.firstlightScript ??= import.meta.url;

const page = globalThis.document;

// What the page says to the worker before the program is there would be lost where a browser does not wait for it.
const early = [];
const keep = (event) => early.push(event.data);
if (!page) {
  addEventListener("message", keep);
}

/** What to say where the program did not come or cannot run; only the page has a place for it. */
function tell(error) {
  const place = page?.getElementById("firstlight-loading");
  if (!place) {
    throw error;
  }
  place.querySelector(".late")?.remove();
  const sentence = place.querySelector("p");
  sentence.setAttribute("role", "alert");
  sentence.textContent =
    typeof WebAssembly === "object"
      ? `Firstlight could not be started: ${error.message}. Reload the page; if that does not help, its files are not whole on this host.`
      : "This browser has no WebAssembly, which Firstlight is made of; open the page in a current Chrome, Edge, Firefox or Safari.";
}

try {
  const { default: init } = await import("./firstlight.js");
  await init({ module_or_path: new URL("./firstlight.wasm", import.meta.url) });
  page?.getElementById("firstlight-loading")?.remove();
} catch (error) {
  tell(error);
}

if (!page) {
  removeEventListener("message", keep);
  early.forEach((data) => dispatchEvent(new MessageEvent("message", { data })));
}
