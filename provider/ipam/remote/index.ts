import { OverlayError } from "../../errors";
import { PoolRun, type RunSettings } from "../run";
import { RemoteOperations } from "./client";
import { Transport } from "./transport";
import { parseServiceUrl } from "./url";

export interface RemoteSettings extends RunSettings {
  offerTtl: number;
  quarantine: number;
  actor?: string | undefined;
  /** The access token. */
  storeToken?: string | undefined;
  tokenKeys?: string | undefined;
}

/** The pool of a service, such as `https://overlay.example`. */
export async function openRemotePool(url: string, settings: RemoteSettings): Promise<PoolRun> {
  const address = parseServiceUrl(url);
  const token = requireToken(settings.storeToken);
  if (settings.tokenKeys !== undefined) throw tokenKeysError();
  const { offerTtl, quarantine, actor = "unknown" } = settings;
  const transport = new Transport({ address, token });
  try {
    const client = { actor, offerTtl, quarantine, place: address.place };
    return new PoolRun(await RemoteOperations.open(transport, client), settings);
  } catch (error) {
    transport.close();
    throw error;
  }
}

function requireToken(token: string | undefined): string {
  if (token !== undefined && /^[\x21-\x7e]+$/.test(token)) return token;
  throw new OverlayError(
    "SETTING_INVALID",
    token === undefined ? "The store is a service, and there is no access token for it." : "storeToken is not a token.",
    "Set overlay:storeToken (or OVERLAY_STORE_TOKEN, or OVERLAY_STORE_TOKEN_FILE) to what `overlayctl access create` has printed.",
  );
}

const tokenKeysError = (): OverlayError =>
  new OverlayError(
    "SETTING_INVALID",
    "tokenKeys is set, but the store is a service, which signs tokens itself.",
    "Remove overlay:tokenKeys (OVERLAY_TOKEN_KEYS) here, and set it for the service.",
  );
