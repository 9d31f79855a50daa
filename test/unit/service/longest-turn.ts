/** How long work holds the event loop: the CPU time of its longest turn, in milliseconds. Other work of the machine does not count. */
export async function longestTurn(work: () => Promise<unknown>): Promise<number> {
  let [longest, isOver, wall, cpu] = [0, false, performance.now(), process.cpuUsage()];
  const turns = new Promise<void>((resolve) => {
    const tick = () => {
      const { user, system } = process.cpuUsage(cpu);
      longest = Math.max(longest, Math.min(performance.now() - wall, (user + system) / 1000));
      [wall, cpu] = [performance.now(), process.cpuUsage()];
      if (isOver) resolve();
      else setImmediate(tick);
    };
    setImmediate(tick);
  });
  await work().finally(() => (isOver = true));
  await turns;
  return longest;
}
