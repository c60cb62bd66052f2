// Ask the server for data; an error becomes a message that names the wrong thing.

export class Refused extends Error {}

async function read(response) {
  if (response.status === 401) throw new Refused("This browser is not admitted. " + (await response.text()));
  const given = await response.json().catch(() => ({ message: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Refused(given.message);
  return given;
}

async function ask(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch (error) {
    if (options?.signal?.aborted) throw error;
    throw new Refused("The studio does not answer. Is `twinloop studio` still running?");
  }
  return read(response);
}

export function get(path, query = {}, signal = undefined) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== undefined));
  return ask(words.size ? `${path}?${words}` : path, { signal });
}

export async function getFloats(path, signal) {
  const response = await fetch(path, { signal });
  if (!response.ok) await read(response);
  return new Float32Array(await response.arrayBuffer());
}

export const post = (path, body) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
