// The types of what the parts of the element pass to each other.

import type {MessageFrame, OutboxEntry, VersionPlace} from "../client/types.d.ts";

/** What the buttons of messages do. */
export interface Actions {
  edit(row: MessageFrame, node: HTMLElement): void;
  answerAgain(seq: number): void;
  answer(choice: string): void;
  showVersion(place: VersionPlace, number: number, buttonClass: string): void;
  cancel(turn: string, button: HTMLButtonElement): void;
  editUnsent(entry: OutboxEntry): void;
}

export interface Hooks {
  /** Called before a row's content is replaced. */
  onReplace(node: HTMLElement): void;
  /** Called when more can be drawn. */
  onLoad(): void;
  /** Gets replies whose Markdown is not loaded. */
  onMarkdown(seq: number): void;
  /** Keeps the scroll position during a later change. */
  keep(change: () => void): void;
}
