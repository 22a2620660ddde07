-- Timestamps are in milliseconds since 1970, and durations in milliseconds.
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    submission TEXT UNIQUE,
    label TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN
        ('waiting', 'queued', 'running', 'paused', 'done', 'failed', 'cancelled', 'expired')),
    -- pending order for a running job
    wish TEXT CHECK (wish IS NULL OR wish IN ('pause', 'cancel') AND state = 'running'),
    -- arguments, each terminated by NUL
    arguments BLOB NOT NULL,
    directory BLOB NOT NULL,
    environment BLOB NOT NULL,
    source TEXT NOT NULL,
    target TEXT NOT NULL,
    host TEXT NOT NULL,
    priority INTEGER NOT NULL,
    submitted INTEGER NOT NULL,
    not_before INTEGER,
    -- start time of the first run, as the user typed it
    at TEXT,
    started INTEGER,
    ended INTEGER CHECK ((ended IS NOT NULL) = (state IN ('done', 'failed', 'cancelled', 'expired'))),
    schedule TEXT,
    deadline INTEGER NOT NULL,
    -- time of the final failure, unless an attempt makes progress before
    retry_until INTEGER,
    -- consecutive attempts without progress; if positive, not_before is the time of the next attempt
    failures INTEGER NOT NULL DEFAULT 0,
    -- maximum progress of any attempt, in files plus bytes
    furthest INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    -- random part of the run ID, chosen at the first attempt
    run TEXT,
    -- offset up to which the events of the attempt have been read
    events_read INTEGER NOT NULL DEFAULT 0,
    exit INTEGER,
    message TEXT,
    -- sums over all attempts
    files INTEGER,
    bytes INTEGER,
    seconds REAL,
    limited_by TEXT,
    previous INTEGER,
    -- user's text for the hook and the webhook
    notify TEXT,
    -- id of a copy between two other hosts that may continue without a process of the job
    copy TEXT
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state, priority DESC, id);
CREATE INDEX jobs_by_previous ON jobs (previous) WHERE previous IS NOT NULL;
CREATE INDEX jobs_by_copy ON jobs (state) WHERE copy IS NOT NULL;
-- results of all attempts; the job's row has only the last one
CREATE TABLE attempts (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    -- state of the job after the attempt
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
-- pending and completed notifications of events, per method
CREATE TABLE notifications (
    number INTEGER NOT NULL REFERENCES events (number) ON DELETE CASCADE,
    method TEXT NOT NULL CHECK (method IN ('hook', 'webhook')),
    due INTEGER NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'delivered', 'given_up')),
    -- time of the method's first failed attempt while this notification was waiting
    failing_since INTEGER,
    -- cause of the last failed attempt
    error TEXT,
    PRIMARY KEY (number, method)
) STRICT, WITHOUT ROWID;
CREATE INDEX notifications_waiting ON notifications (method, due) WHERE state = 'waiting';
-- random id that distinguishes the events of different stores
CREATE TABLE store (id TEXT NOT NULL) STRICT;
INSERT INTO store VALUES (lower(hex(randomblob(8))));
