"""The tables of both SQL stores, as numbered migrations.

A script names column types in braces, and each store says what they are called in its database. A migration that has
been released never changes; a new layout is a new migration at the end.
"""

TABLES = (
    "setting", "agent", "enrolment", "nonce", "upload", "erased", "event", "snapshot", "chunk",
    "journal", "move", "refusal", "measure", "audit",
)  # fmt: skip
MIGRATIONS = (
    """
    CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE agent (id {identity}, public_key {bytes} NOT NULL UNIQUE, enrolled {real} NOT NULL, revoked {real});
    CREATE TABLE enrolment (token_hash {bytes} PRIMARY KEY, expires {real} NOT NULL, used {real});
    CREATE TABLE upload (
        position {integer} PRIMARY KEY, agent {integer} NOT NULL, sequence {integer} NOT NULL, cause TEXT NOT NULL,
        count {integer} NOT NULL, clicks {integer} NOT NULL, rounds {integer} NOT NULL, numbers {bytes} NOT NULL,
        nonce {bytes} NOT NULL, UNIQUE (agent, sequence));
    CREATE TABLE answer (position {integer} PRIMARY KEY, body {bytes} NOT NULL);
    CREATE TABLE forgotten (position {integer} PRIMARY KEY);
    CREATE TABLE snapshot (
        position {integer} NOT NULL, part {integer} NOT NULL, parts {integer} NOT NULL, body {bytes} NOT NULL,
        PRIMARY KEY (position, part));
    CREATE TABLE journal (
        position {integer} PRIMARY KEY, at {integer} NOT NULL, agent {integer} NOT NULL, cause TEXT NOT NULL,
        rounds {integer} NOT NULL, count {integer} NOT NULL, clicks {integer} NOT NULL, clusters {integer} NOT NULL);
    CREATE TABLE move (
        position {integer} NOT NULL, at {integer} NOT NULL, agent {integer} NOT NULL, cluster {integer} NOT NULL,
        PRIMARY KEY (agent, position));
    CREATE INDEX move_position ON move (position);
    CREATE TABLE refusal (
        minute {integer} NOT NULL, reason TEXT NOT NULL, count {integer} NOT NULL, PRIMARY KEY (minute, reason));
    CREATE TABLE measure (
        number {identity}, at {integer} NOT NULL, series TEXT NOT NULL,
        round {integer} NOT NULL, regret {real} NOT NULL, reward {integer} NOT NULL)
    """,
    # Answers are given anew, not kept. Entries form a hash chain; ``erased`` has the digests of those that are gone,
    # and ``event`` what took a position of the log and is no upload. ``uploads`` and ``exchanges`` are how many a row
    # stands for, and ``folded`` is the last sequence number of an agent's folded uploads. A snapshot names its chunks.
    # ``nonce`` has those of requests that leave no upload in the log: any server process refuses a replay.
    """
    DROP TABLE answer;
    ALTER TABLE upload ADD COLUMN uploads {integer} NOT NULL DEFAULT 1;
    ALTER TABLE upload ADD COLUMN salt {bytes};
    ALTER TABLE upload ADD COLUMN link {bytes};
    CREATE TABLE erased (position {integer} PRIMARY KEY, digest {bytes} NOT NULL);
    CREATE TABLE event (position {integer} PRIMARY KEY, kind TEXT NOT NULL, body {bytes}, link {bytes});
    INSERT INTO event (position, kind) SELECT position, 'forgotten' FROM forgotten;
    DROP TABLE forgotten;
    ALTER TABLE agent ADD COLUMN folded {integer} NOT NULL DEFAULT 0;
    ALTER TABLE journal ADD COLUMN exchanges {integer} NOT NULL DEFAULT 1;
    DROP TABLE snapshot;
    CREATE TABLE snapshot (position {integer} PRIMARY KEY, digests {bytes} NOT NULL);
    CREATE TABLE chunk (digest {bytes} PRIMARY KEY, body {bytes} NOT NULL);
    CREATE TABLE audit (
        number {identity}, at {integer} NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL,
        agent {integer}, detail TEXT NOT NULL, link {bytes} NOT NULL);
    CREATE TABLE nonce (
        agent {integer} NOT NULL, nonce {integer} NOT NULL, created {integer} NOT NULL, PRIMARY KEY (agent, nonce));
    CREATE INDEX nonce_created ON nonce (created)
    """,
)
