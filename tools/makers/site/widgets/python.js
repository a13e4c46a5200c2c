// A worker: Pyodide from the site's own folder, and in it the project's own files, under the same names.
let module = null;

async function begin({ files, module: name }) {
  const { loadPyodide } = await import("./pyodide/pyodide.mjs");
  const pyodide = await loadPyodide({ indexURL: new URL("./pyodide/", import.meta.url).href });
  for (const [path, text] of Object.entries(files)) {
    pyodide.FS.mkdirTree(`/rungs/${path}`.replace(/\/[^/]*$/, ""));
    pyodide.FS.writeFile(`/rungs/${path}`, text);
  }
  pyodide.runPython("import sys; sys.path.append('/rungs')");
  pyodide.runPython(`
import importlib, json
module = importlib.import_module(${JSON.stringify(name)})
def ask(inputs):
    return json.dumps(module.answer(**json.loads(inputs)))
`);
  module = pyodide.globals.get("ask");
}

onmessage = async ({ data }) => {
  try {
    if (data.files) {
      await begin(data);
      postMessage({ ready: true });
    } else {
      postMessage({ answer: module(JSON.stringify(data.inputs)) });
    }
  } catch (error) {
    postMessage({ failed: String(error.message || error).trim().split("\n").pop() });
  }
};
