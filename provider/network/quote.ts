/** For a shell: whatever it is, it stays one word. */
export const quote = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;
