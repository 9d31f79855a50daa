// Written by `npm run generate` from provider/settings.ts. Do not edit.
export const SETTING_NAMES: string[] = ["store","storeToken","scope","actor","offerTtl","quarantine","tokenKeys","user","privateKey","privateKeyPath","agentSocketPath","knownHosts","unknownHostKey","connectTimeout","operationTimeout","parallelHosts","tenantDefaults","tenant","unreachableOnDelete"];
