-- Moments are milliseconds since 1970, spans milliseconds.
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    submission TEXT UNIQUE,
    label TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN
        ('waiting', 'queued', 'running', 'paused', 'done', 'failed', 'cancelled', 'expired')),
    -- what is asked of a running job
    wish TEXT CHECK (wish IS NULL OR wish IN ('pause', 'cancel') AND state = 'running'),
    -- words, each with a NUL behind it
    arguments BLOB NOT NULL,
    directory BLOB NOT NULL,
    environment BLOB NOT NULL,
    source TEXT NOT NULL,
    target TEXT NOT NULL,
    host TEXT NOT NULL,
    priority INTEGER NOT NULL,
    submitted INTEGER NOT NULL,
    not_before INTEGER,
    -- the start time of the first run as it was typed
    at TEXT,
    started INTEGER,
    ended INTEGER CHECK ((ended IS NOT NULL) = (state IN ('done', 'failed', 'cancelled', 'expired'))),
    schedule TEXT,
    deadline INTEGER NOT NULL,
    -- when it is given up unless an attempt comes further before
    retry_until INTEGER,
    -- attempts in a row that have come no further; with these, not_before is the time of the next
    failures INTEGER NOT NULL DEFAULT 0,
    -- the furthest that any attempt has come, in files and bytes
    furthest INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    -- how far the events of the attempt have been read
    events_read INTEGER NOT NULL DEFAULT 0,
    exit INTEGER,
    message TEXT,
    -- the sum of all attempts
    files INTEGER,
    bytes INTEGER,
    seconds REAL,
    limited_by TEXT,
    previous INTEGER,
    -- a text of the user for the hook and the webhook
    notify TEXT,
    -- the id of a copy between two other hosts that may go on without a process of the job
    copy TEXT
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state, priority DESC, id);
CREATE INDEX jobs_by_previous ON jobs (previous) WHERE previous IS NOT NULL;
CREATE INDEX jobs_by_copy ON jobs (state) WHERE copy IS NOT NULL;
-- ends of attempts: the job's own row has the last alone
CREATE TABLE attempts (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    -- what the job was then
    state TEXT NOT NULL,
    exit INTEGER,
    message TEXT,
    files INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE dependencies (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    needs INTEGER NOT NULL REFERENCES jobs (id),
    PRIMARY KEY (job, needs)
) STRICT, WITHOUT ROWID;
CREATE INDEX dependencies_by_need ON dependencies (needs);
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    time INTEGER NOT NULL,
    kind TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    message TEXT
) STRICT;
CREATE INDEX events_by_job ON events (job, number);
-- events to send, and sent, by each method
CREATE TABLE notifications (
    number INTEGER NOT NULL REFERENCES events (number) ON DELETE CASCADE,
    method TEXT NOT NULL CHECK (method IN ('hook', 'webhook')),
    due INTEGER NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'delivered', 'given_up')),
    -- the first failed attempt of the method while this one waited
    failing_since INTEGER,
    -- the reason why the last attempt failed
    error TEXT,
    PRIMARY KEY (number, method)
) STRICT, WITHOUT ROWID;
CREATE INDEX notifications_waiting ON notifications (method, due) WHERE state = 'waiting';
-- distinguishes the events of several stores
CREATE TABLE store (id TEXT NOT NULL) STRICT;
INSERT INTO store VALUES (lower(hex(randomblob(8))));
