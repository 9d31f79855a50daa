import { OverlayError } from "../../errors";
import type { Store } from "../types";
import { RemoteIpam } from "./client";
import { Transport } from "./transport";
import { parseServiceUrl } from "./url";

export interface RemoteSettings {
  offerTtl: number;
  quarantine: number;
  actor?: string | undefined;
  /** The access token. */
  storeToken?: string | undefined;
  tokenKeys?: string | undefined;
}

/** The store of a service, such as `https://overlay.example`. */
export async function openRemoteIpam(url: string, settings: RemoteSettings): Promise<Store> {
  const address = parseServiceUrl(url);
  const token = requireToken(settings.storeToken);
  if (settings.tokenKeys !== undefined) throw tokenKeysError();
  const { offerTtl, quarantine, actor = "unknown" } = settings;
  const transport = new Transport({ address, token });
  try {
    return await RemoteIpam.open(transport, { actor, offerTtl, quarantine, place: address.place });
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
