// Types of the queries, bodies and answers of the REST API. Only the type checker and editors read
// this file. tests/js/test_rest.py compares the fields with those of the API.

import type {IfBusy, MessageFrame, Range, RunningTurn} from "./types.d.ts";

export type TurnStatus =
  | "waiting"
  | "running"
  | "complete"
  | "interrupted"
  | "failed"
  | "cancelled";

/** A message, with the fields of its frame. */
export interface RestMessage extends Omit<MessageFrame, "type"> {
  /** Null if the answer had to render too much; the request of one message renders more. */
  html?: string | null;
}

// Queries and bodies

export interface SessionQuery {
  archived?: boolean;
  pinned?: boolean;
  running?: boolean;
  title?: string;
  metadata?: string;
  limit?: number;
  cursor?: string | null;
}

export interface MessageQuery {
  limit?: number;
  after?: number;
  before?: number;
  cursor?: string;
  html?: boolean;
}

export interface MessageForm {
  html?: boolean;
}

export interface OpenSession {
  key?: string;
  title?: string;
}

/** At least one of title and pinned. */
export interface UpdateSession {
  title?: string;
  pinned?: boolean;
  expect_revision?: number;
}

export interface RemovedQuery {
  limit?: number;
  cursor?: string | null;
}

/** Either text or content. */
export interface SendMessage {
  client_id?: string;
  text?: string;
  content?: object[];
  epoch?: number;
  if_busy?: IfBusy;
  replaces?: number;
  expect_seq?: number;
  wait?: number | boolean;
  html?: boolean;
}

export interface SearchBody {
  query: string;
  session?: string | null;
  role?: "user" | "assistant" | "tool" | null;
  before?: string | null;
  after?: string | null;
  order?: "rank" | "newest";
  mode?: "words" | "prefix" | "phrase";
  limit?: number;
  cursor?: string | null;
}

export interface NewFeedback {
  value: 1 | -1 | null;
  reason?: string;
}

export interface StopTurn {
  turn?: string;
}

export interface ExportQuery {
  format?: "json" | "markdown";
}

export interface EraseOwnData {
  confirm: string;
}

// Answers

export interface SessionHead {
  key: string;
  title: string;
  epoch: number;
  first_seq: number;
  last_seq: number;
  revision: number;
  archived: boolean;
  running: RunningTurn | null;
  waiting: number;
}

export interface Session extends SessionHead {
  pinned: boolean;
  held: boolean;
  expires_at: string | null;
  messages: number;
  created_at: string;
  last_message_at: string | null;
}

export interface SessionPage {
  sessions: Session[];
  next: string | null;
}

export interface Purged {
  undo: number;
  until: string;
}

export interface RemovedSession {
  undo: number;
  key: string;
  title: string;
  messages: number;
  removed_at: string;
  until: string;
}

export interface RemovedPage {
  removed: RemovedSession[];
  next: string | null;
}

export interface MessagePage {
  epoch: number;
  first_seq: number;
  last_seq: number;
  superseded: Range[];
  messages: RestMessage[];
  cursor?: string;
  reset?: string | null;
  more?: boolean;
  session?: SessionHead;
}

export interface Sent {
  turn: string;
  status: TurnStatus;
  seq: number | null;
  error: string;
  duplicate: boolean;
  messages: RestMessage[];
}

export interface Version {
  turn: string | null;
  seq: number;
  to_seq: number;
  current: boolean;
}

export interface VersionPage {
  versions: Version[];
}

export interface LiveTurn {
  turn: string;
  status: "waiting" | "running";
  text: string;
  since: string;
}

export interface TurnPage {
  turns: LiveTurn[];
}

export interface Turn {
  turn: string;
  status: TurnStatus;
  seqs: Range | null;
  error: string;
  model: string;
  usage: object | null;
}

export interface FoundMessage {
  session: string;
  title: string;
  seq: number;
  role: "user" | "assistant" | "tool";
  at: string;
  snippet: string;
  ranges: [number, number][];
  score: number;
}

export interface FoundPage {
  hits: FoundMessage[];
  partial: boolean;
  cursor: string | null;
}

export interface Feedback {
  turn: string;
  value: 1 | -1 | null;
  reason: string;
}

export interface Stopped {
  turn: string | null;
  status: TurnStatus | null;
}

export interface Ticket {
  ticket: string;
  expires_in: number;
  protocols: string[];
}

export interface Visitor {
  visitor: string;
  ends_at: string;
  /** of a new visitor of an embed, for `Authorization: Visitor`; else null */
  token: string | null;
}

export interface AdoptableSession {
  key: string;
  title: string;
  text: string;
  last_message_at: string | null;
}

export interface Adoptable {
  visitor: string | null;
  sessions: AdoptableSession[];
  /** whether the user has already taken over sessions of this visitor */
  done: boolean;
}

export interface NewVisitor {
  /** the public key of the embed; by default a visitor of this site */
  embed?: string;
}

export interface Adopt {
  visitor: string;
}

export interface Adopted {
  keys: Record<string, string>;
}

export interface OwnErasure {
  sessions: number;
  messages: number;
  turns: number;
  held: string[];
}

export interface HealthState {
  status: "ok" | "unavailable";
  database?: boolean;
  channel_layer?: boolean;
  tables?: boolean | null;
  sweep_age?: number | null;
  overdue_turns?: number | null;
  unclaimed_turns?: number | null;
}

/** An error by RFC 9457; only `code` and `detail` are in all of them. */
export interface Problem {
  status?: number;
  title?: string;
  detail: string;
  code: string;
  retry?: boolean;
  field?: string;
  limit?: number;
  turn?: string;
  retry_after?: number;
  /** Of `refused`: the code of the host. */
  reason?: string;
  ref?: string;
}

// The client

export interface RestOptions {
  /** Sent with each call, or a function that returns them; such as `Authorization`. */
  headers?: HeadersInit | (() => HeadersInit | Promise<HeadersInit>);
  /** Django's CSRF token, if the page cannot read it from the cookie. */
  csrfToken?: string;
  /** The name of the cookie with Django's CSRF token. */
  csrfCookie?: string;
  credentials?: RequestCredentials;
  /** How long to wait for an answer, in addition to `wait`. */
  timeoutMs?: number;
  /** How many entries `sessions`, `removed` and the iterators of messages read at once. */
  pageSize?: number;
}

export interface CallOptions {
  /** Aborts the call. */
  signal?: AbortSignal;
}

export interface Call extends CallOptions {
  method: string;
  path: string;
  query?: Record<string, unknown>;
  body?: object;
  headers?: Record<string, string>;
  /** Whether a second execution changes nothing and has the same answer. */
  canRepeat?: boolean;
  /** Without the user's login. */
  isPublic?: boolean;
  /** Statuses besides 2xx with an answer that is no problem. */
  accepts?: number[];
  /** Time to wait for the answer, in addition to the client's. */
  timeoutMs?: number;
}
