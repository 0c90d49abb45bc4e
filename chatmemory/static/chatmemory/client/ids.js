// Idempotency keys.

// Not `crypto.randomUUID`, which exists only on pages over HTTPS.
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const text = btoa(String.fromCharCode(...bytes));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
