/** Types of the parts of set-up that TypeScript imports; patterns, so that CommonJS TypeScript may import them like any other file (tsx and vitest do load them). */
declare module "*/setup/tools.mjs" {
  /** The repository's folder. */
  export const root: string;
  export const pulumiVersion: string;
  export const pulumiTools: string[];
  export function cacheFolder(): string;
  export function pulumiCacheFolder(): string;
  export function folderOnPath(command: string): string | undefined;
  /** The folder with the Pulumi CLI; undefined before set-up has run. */
  export function pulumiBinDir(): string | undefined;
  /** Why this machine can have no lab, if it cannot. */
  export function whyNoLab(): string | undefined;
  /** This process's environment, with the Pulumi CLI on PATH. */
  export function pulumiEnv(): NodeJS.ProcessEnv;
  /** The URL of a file backend of Pulumi whose files a killed CLI leaves whole. */
  export function fileBackend(folder: string): string;
}

declare module "*/setup/fuzz-engine.mjs" {
  export function ensureFuzzEngine(): Promise<string>;
}

declare module "*/setup/vm-image.mjs" {
  export function imagePackages(suite: string): string[];
  /** Where the disk and kernel of emulated machines are; made by set-up. */
  export function vmImageFolder(): string;
  export function ensureVmImage(): Promise<void>;
}

declare module "*/setup/pulumi-release.mjs" {
  /** SHA-256 sums of the archives of `pulumiVersion`, by platform. */
  export const releaseSums: Readonly<Record<string, string>>;
  export function downloadRelease(
    folder: string,
    options?: { site?: string; target?: string; sums?: Readonly<Record<string, string>> },
  ): Promise<void>;
}

declare module "*/build.mjs" {
  /** Whether dist/ is newer than its sources. */
  export function isBuilt(): boolean;
  export function build(): void;
}
