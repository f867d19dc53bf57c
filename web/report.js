// What a report has before boot.js: the files that boot.js loads are in this text, on either thread.
//
// A worker of a document from a disk is of another origin than the document, so that it can read none of its blobs: the
// worker's script is this same text as an address, and each thread unpacks for itself.

const packed = {/* packed */};

if (globalThis.document) {
  const program = document.getElementById("firstlight-program").textContent;
  globalThis.firstlightScript = `data:text/javascript,${encodeURIComponent(program)}`;
}

/** The address of one of the files. */
async function unpacked(name, type) {
  const gzipped = await fetch(`data:application/gzip;base64,${packed[name]}`);
  const plain = gzipped.body.pipeThrough(new DecompressionStream("gzip"));
  return URL.createObjectURL(new Blob([await new Response(plain).arrayBuffer()], { type }));
}

