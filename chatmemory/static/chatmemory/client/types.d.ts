// Types of the frames of `chatmemory.v1` and of the data that the client offers. Only the type
// checker and editors read this file.
//
// The fields of each frame are those of protocol.schema.json; tests/js/test_javascript.py compares
// them.

export interface RunningTurn {
  turn: string;
  status: "waiting" | "running";
  since: string | null;
}

export interface WaitingTurn {
  turn: string;
  text: string;
}

/** A range of message numbers, ends included. */
export type Range = [number, number];

export interface Limits {
  max_message_chars?: number;
  max_frame_bytes?: number;
}

export interface WelcomeFrame {
  type: "welcome";
  v: number;
  session: {key: string; title: string};
  limits: Limits;
}

export interface SessionFrame {
  type: "session";
  key: string;
  title: string;
  epoch: number;
  first_seq: number;
  last_seq: number;
  revision: number;
  archived: boolean;
  live?: boolean;
  superseded: Range[];
  running: RunningTurn | null;
  waiting: WaitingTurn[];
}

export interface ToolCall {
  id: string;
  name: string;
  /** JSON, unless it is cut or the model wrote no valid JSON. */
  args: string;
  cut: boolean;
}

export interface ToolResult {
  call: string;
  name: string;
  failed: boolean;
}

export interface Reasoning {
  text: string;
  cut: boolean;
}

export interface MessageFrame {
  type: "message";
  seq: number;
  revision: number;
  turn: string | null;
  step: number | null;
  client_id: string | null;
  role: "system" | "user" | "assistant" | "tool";
  status: "complete" | "interrupted" | "failed";
  text: string;
  content: object[] | null;
  cut: boolean;
  error: string;
  asks: {value?: unknown} | null;
  usage: object | null;
  model: string;
  redacted: boolean;
  quarantined: boolean;
  feedback: 1 | -1 | null;
  created_at: string;
  calls?: ToolCall[];
  result?: ToolResult;
  reasoning?: Reasoning;
}

export interface ResetFrame {
  type: "reset";
  reason: string;
  epoch: number;
  lost: number | null;
}

export interface SyncedFrame {
  type: "synced";
  cursor: string;
}

export interface ProgressEvent {
  kind: "thinking" | "tool";
  name: string;
  state: string;
}

export interface SnapshotFrame {
  type: "snapshot";
  turn: string;
  step: number;
  text: string;
  event?: ProgressEvent;
}

export interface DeltaFrame {
  type: "delta";
  turn: string;
  step: number;
  text?: string;
  event?: ProgressEvent;
}

export interface BlockFrame {
  type: "block";
  turn: string;
  step: number;
  start: number;
  end: number;
  html: string;
  last?: boolean;
}

export interface OkFrame {
  type: "ok";
  id: number | string;
  turn?: string;
  status?: string;
  seq?: number | null;
  duplicate?: boolean;
  title?: string;
  feedback?: 1 | -1 | null;
  messages?: MessageFrame[];
}

export interface ErrorFrame {
  type: "error";
  id?: number | string;
  code: string;
  message: string;
  retry: boolean;
  retry_after_ms?: number;
  field?: string;
  limit?: number;
  turn?: string;
  reason?: string;
  ref?: string;
}

export interface PingFrame {
  type: "ping";
  n: number;
}

export interface ByeFrame {
  type: "bye";
  code: number;
  reason: string;
  reconnect: boolean;
  after_ms: number | null;
  message?: string;
}

export type ServerFrame =
  | WelcomeFrame
  | SessionFrame
  | MessageFrame
  | ResetFrame
  | SyncedFrame
  | SnapshotFrame
  | DeltaFrame
  | BlockFrame
  | OkFrame
  | ErrorFrame
  | PingFrame
  | ByeFrame;

export interface HelloFrame {
  type: "hello";
  v: number;
  cursor?: string | null;
  create?: boolean;
  html?: string | null;
  person?: string | null;
}

export interface SendFrame {
  type: "send";
  id: number | string;
  client_id: string;
  text?: string;
  content?: object[];
  epoch?: number | null;
  if_busy?: IfBusy | null;
  replaces?: number | null;
  expect_seq?: number | null;
}

export interface StopFrame {
  type: "stop";
  id: number | string;
  turn: string;
}

export interface RenameFrame {
  type: "rename";
  id: number | string;
  title: string;
}

export interface FeedbackFrame {
  type: "feedback";
  id: number | string;
  turn: string;
  value: 1 | -1 | null;
  reason?: string;
}

export interface FetchFrame {
  type: "fetch";
  id: number | string;
  before_seq: number;
  limit?: number;
}

export interface PongFrame {
  type: "pong";
  n: number;
}

/** A frame that is answered by `ok` or `error`, before it has its id. */
export type RequestFrame =
  | Omit<SendFrame, "id">
  | Omit<StopFrame, "id">
  | Omit<RenameFrame, "id">
  | Omit<FeedbackFrame, "id">
  | Omit<FetchFrame, "id">;

export type ClientFrame =
  | HelloFrame
  | SendFrame
  | StopFrame
  | RenameFrame
  | FeedbackFrame
  | FetchFrame
  | PongFrame;

/** Why a request failed: an `error` frame, or `{code: "disconnected"}`. */
export type Failure = Partial<ErrorFrame> & {code: string};

export type IfBusy = "queue" | "reject" | "interrupt";

export type ConnectionState = "idle" | "connecting" | "live" | "waiting" | "ended";

/** Why the last connection ended. `refused`: the server answers HTTP but no websocket opens. */
export interface Ending {
  code: number | "refused";
  reason: string;
  /** the sentence of the host that refuses */
  message?: string;
}

/** The text of a step that is streamed and not stored yet. */
export interface Stream {
  key: string;
  turn: string;
  step: number;
  text: string;
  /** The finished blocks; empty without the option `html`. */
  html: string;
  /** Where the text starts that they do not contain. */
  closed: number;
  /** The same position in code points, as in frames. */
  closedChars: number;
  /** Whether `html` is that of the whole stored text. */
  isWhole: boolean;
}

export interface OutboxEntry {
  client_id: string;
  text: string;
  content?: object[];
  epoch?: number;
  if_busy?: IfBusy;
  replaces?: number;
  expect_seq?: number;
  state: "new" | "sent" | "held" | "stored" | "failed";
  code?: string;
  message?: string;
}

/** One version of a turn: the messages from one number to another, ends included. */
export interface Version {
  from: number;
  to: number;
}

/** A row to show, and its place among the versions of its turn if there are several. */
export interface PathItem {
  row: MessageFrame;
  version: VersionPlace | null;
  isOld: boolean;
}

export interface VersionPlace {
  of: number;
  number: number;
  count: number;
}

export type TicketSource = () => string | Promise<string>;

export interface ClientOptions {
  /**
   * Create the session if it does not exist; its key must be a version-4 UUID. The client connects
   * with the first message, so that no session is stored without one.
   */
  create?: boolean;
  /** Also receive streamed text as HTML, with labels in this language; "" for the server's. */
  html?: string | null;
  /** The primary key of the user; if another one is signed in, the connection ends with 4401. */
  person?: string | null;
  /**
   * For pages that Django's cookie does not reach: returns a new ticket, or a promise of one, for
   * each connection, and throws {code: 4401} if the user must sign in again.
   */
  ticket?: TicketSource | null;
  /** Where unacknowledged messages are kept; null keeps them in memory only. */
  storage?: Pick<Storage, "getItem" | "setItem" | "removeItem"> | null;
  /** The key of these messages in the storage. */
  storageKey?: string;
}
