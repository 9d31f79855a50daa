import { readFile } from "node:fs/promises";
import { homedir } from "node:os";
import type { Config } from "node-ssh";
import { OverlayError } from "../../errors";
import { type Connection, connectionName, userOf } from "../connection";

/** What ssh2 logs in with, and the names of the methods for messages: never what is in them. */
export interface Credentials {
  config: Config;
  methods: string[];
}

export async function readCredentials(connection: Connection): Promise<Credentials> {
  const privateKey = await readPrivateKey(connection);
  const agent = connection.agentSocketPath || process.env.SSH_AUTH_SOCK;
  const methods = [
    ...(connection.password ? ["password"] : []),
    ...(privateKey ? [`private key (${keySource(connection)})`] : []),
    ...(agent ? [`agent (${agent})`] : []),
  ];
  return { config: configOf(connection, privateKey, agent), methods };
}

const keySource = (connection: Connection): string =>
  connection.privateKey ? "privateKey" : `file ${connection.privateKeyPath}`;

function configOf(connection: Connection, privateKey: string | undefined, agent: string | undefined): Config {
  const { password, privateKeyPassword } = connection;
  return {
    username: userOf(connection),
    // ssh2's order, with the agent last: node-ssh gives up at the error of an agent that does not run.
    authHandler: ["none", "password", "publickey", "keyboard-interactive", "agent"],
    ...(privateKey && { privateKey }),
    ...(privateKeyPassword && { passphrase: privateKeyPassword }),
    ...(agent && { agent }),
    // Servers with PAM often take a password only as the answer to a prompt.
    ...(password && {
      password,
      tryKeyboard: true,
      onKeyboardInteractive: (_name, _instructions, _lang, prompts, finish) => finish(prompts.map(() => password)),
    }),
  };
}

async function readPrivateKey(connection: Connection): Promise<string | undefined> {
  if (connection.privateKey) return `${connection.privateKey.trim()}\n`;
  if (!connection.privateKeyPath) return undefined;
  if (connection.privateKeyPath.includes("-----BEGIN")) throw keyForPath(connection);
  const path = expandHome(connection.privateKeyPath);
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    throw new OverlayError(
      "SSH_AUTH",
      `The private key file ${path} for ${userOf(connection)}@${connectionName(connection)} cannot be read (${(error as NodeJS.ErrnoException).code}).`,
      "Correct privateKeyPath, or give the key's text as privateKey.",
    );
  }
}

const keyForPath = (connection: Connection): OverlayError =>
  new OverlayError(
    "SSH_AUTH",
    `privateKeyPath for ${userOf(connection)}@${connectionName(connection)} is the text of a key, not the name of a file.`,
    "Give it as privateKey.",
  );

/** The server accepted none of the credentials. */
export function refusedCredentials(connection: Connection, methods: string[], cause: Error): OverlayError {
  const tried = methods.length > 0 ? `tried: ${methods.join(", ")}` : "no key, password or agent was given";
  const reason = cause.message.startsWith("All configured") ? "" : `; ${cause.message}`;
  return new OverlayError(
    "SSH_AUTH",
    `${connectionName(connection)} refused to log in ${userOf(connection)} (${tried}${reason}).`,
    `Check user and key: the public key must stand in ~${userOf(connection)}/.ssh/authorized_keys there.`,
    cause,
  );
}

/** ssh2 could not read the private key. Its reasons name formats and passphrases, never the key. */
export function unreadableKey(connection: Connection, cause: Error): OverlayError {
  const locked = /passphrase|encrypted|integrity|decrypt/i.test(cause.message);
  return new OverlayError(
    "SSH_AUTH",
    `The private key (${keySource(connection)}) for ${userOf(connection)}@${connectionName(connection)} cannot be used: ` +
      (locked
        ? "it is encrypted, and privateKeyPassword is missing or wrong."
        : "it is not a private key that we can read."),
    locked
      ? "Give the right privateKeyPassword."
      : "Give a key as ssh-keygen writes it, complete with its BEGIN and END lines.",
  );
}

/** `~/x` in the user's home, as in OpenSSH's own settings. */
export const expandHome = (path: string): string => path.replace(/^~(?=\/|$)/, homedir());
