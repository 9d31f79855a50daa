/** What was started, to be stopped in reverse order. */
export class Resources {
  readonly #started: { stop(): unknown }[] = [];

  async add<T extends { stop(): unknown }>(starting: Promise<T>): Promise<T> {
    const started = await starting;
    this.#started.push(started);
    return started;
  }

  async stopAll(): Promise<void> {
    for (const each of this.#started.splice(0).reverse()) await each.stop();
  }
}

/** Runs a function, and stops what it has started. */
export async function withResources<T>(run: (resources: Resources) => Promise<T>): Promise<T> {
  const resources = new Resources();
  try {
    return await run(resources);
  } finally {
    await resources.stopAll();
  }
}
